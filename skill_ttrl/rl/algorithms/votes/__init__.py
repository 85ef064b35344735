"""Algorithms that learn differently from the two halves of a vote, or that read more than a winner from it."""
