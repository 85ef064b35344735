"""Samplers behind one protocol (`base`)."""
