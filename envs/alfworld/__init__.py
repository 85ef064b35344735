"""ALFWorld: household tasks in text, the official games and ours, on the official engine or on a much faster one."""
