"""Reading answers in LaTeX and plain text: tokens, grammar, numbers, units, intervals."""
