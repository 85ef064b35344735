"""Algorithms that go from token to token: returns, and advantages over the values of a critic."""
