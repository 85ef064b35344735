"""The names of PyPI `skillrl` for its users: environment, clients, config and trainer."""
