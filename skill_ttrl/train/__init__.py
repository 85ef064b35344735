"""Training loops of RL and imitation, and their parts: defaults and rules of a config, its tasks, a run's state, and metrics."""
