"""Retrieval: embedders, vector index, search, and what a prompt is given."""
