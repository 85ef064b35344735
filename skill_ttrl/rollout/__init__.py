"""Rollouts: tasks are sampled in groups, turn by turn, on environments."""
