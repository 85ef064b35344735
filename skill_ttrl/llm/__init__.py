"""Samplers behind one protocol (`backend`)."""
