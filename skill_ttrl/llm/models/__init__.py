"""Model folders: loading, saving, the built-in policy."""
