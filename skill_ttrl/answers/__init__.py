"""Answers: how they are found in a text and when two of them are the same."""
