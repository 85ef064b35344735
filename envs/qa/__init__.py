"""Question answering: short answers, several accepted phrasings, an optional context."""
