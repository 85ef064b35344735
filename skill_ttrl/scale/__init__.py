"""Work that is shared out to the workers of a Ray cluster. What the work is, is handed in; only this room imports ray."""
