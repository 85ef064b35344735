"""A skill document in training: its rollouts by a policy or a model, and their results."""
