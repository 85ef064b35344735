"""From a config to the parts of a run, and every check before it starts."""
