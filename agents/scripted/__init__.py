"""Scripted agents: controls and experts that need no model."""
