"""What a run takes in: its environment's defaults, tasks and demonstrations, their revisions, and leaks among them."""
