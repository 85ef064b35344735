"""Algorithms that compare the rollouts of a group: GRPO, its variants, and other baselines."""
