"""Several processes (ranks) that train one policy: starting them, talking to them, sharding weights and checkpoints."""
