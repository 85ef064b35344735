"""The learner: advantages, losses, updates. Knows nothing of environments, agents or skills."""
