"""The gate: scores on held-out items, and the decision on a candidate."""
