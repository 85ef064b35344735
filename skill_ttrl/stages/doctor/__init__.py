"""Needs of a config and means of this machine: checks, memory, speed, plan."""
