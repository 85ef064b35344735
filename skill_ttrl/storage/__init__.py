"""Files that are written whole or not at all: atomic writes, locks, append-only logs, caches."""
