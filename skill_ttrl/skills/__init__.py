"""Skills: the versioned bank, its retrieval, the parser of what a model asks of it, and merging."""
