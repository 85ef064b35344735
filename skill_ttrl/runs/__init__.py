"""Files of a run: folder, checkpoints, metrics, statistics, report."""
