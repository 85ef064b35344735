"""What this machine and a config need: checks, memory, speed, plan."""
