"""Collecting episodes: by scripted agents, by a policy, or to watch."""
