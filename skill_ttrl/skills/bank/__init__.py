"""The skill bank: a versioned value with one gate, kept as a log in a folder."""
