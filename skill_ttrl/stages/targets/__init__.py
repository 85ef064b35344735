"""Policies by name: a run, a checkpoint, a model, stored samples; and their export."""
