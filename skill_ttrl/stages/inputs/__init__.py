"""Inputs of a run: its environment's defaults, tasks and demonstrations, their revisions, and leaks among them."""
