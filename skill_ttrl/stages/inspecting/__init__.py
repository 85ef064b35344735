"""Views of runs, checkpoints, banks and files."""
