"""One visible loop per stage; `run(config)` is the Python form of each command."""
