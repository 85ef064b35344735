"""Generated ALFWorld games: rooms, goals, walkthroughs, files."""
