"""Parts of a training run: its context, state, steps, bank, votes, evolution and signs."""
