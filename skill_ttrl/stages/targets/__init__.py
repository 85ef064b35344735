"""Policies by name: a run, a checkpoint, a model, stored samples; sampling, playing and exporting them."""
