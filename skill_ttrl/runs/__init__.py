"""What is kept of a run: folder, checkpoints, metrics, statistics, report."""
