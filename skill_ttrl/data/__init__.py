"""Tasks and records: files of problems, synthetic families, files of episodes."""
