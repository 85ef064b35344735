"""How a micro-batch goes through the model: prefix trees without padding, their attention, and log-probs in blocks."""
