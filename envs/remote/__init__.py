"""Environments over HTTP: the server of `skillttrl envs serve`, and the environment on it."""
