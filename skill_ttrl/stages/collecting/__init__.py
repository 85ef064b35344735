"""Playing episodes: collections in chunks that survive a kill, and games to watch."""
