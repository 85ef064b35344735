"""The loops of training, reinforcement and imitation, and their parts: from a config to a run, its rules, its state and its measures."""
