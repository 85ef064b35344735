"""Merging the skill operations of a step's winners into updates of a bank."""
