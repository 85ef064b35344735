"""Parts of a training run: its context, bank, votes, evolution, signs and summary."""
