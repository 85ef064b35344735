"""Agents: how a task becomes a prompt and an answer an action."""
