"""Algorithms that compare steps of episodes with other steps from the same state."""
