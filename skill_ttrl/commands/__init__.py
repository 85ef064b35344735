"""What the command line calls: a module a command, whose `run(config)` is its Python form."""
