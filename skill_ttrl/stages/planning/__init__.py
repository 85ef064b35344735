"""Planning a run for GPUs that are not here: cost of a step in closed form, simulation of the loop, memory by rank, advice."""
