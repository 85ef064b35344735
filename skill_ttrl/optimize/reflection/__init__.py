"""Optimizers: those that ask a language model, and one that needs none."""
