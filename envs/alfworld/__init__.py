"""ALFWorld: household tasks in text, the official games and ours, on an engine that answers as the official one does."""
