"""Skills: the versioned bank, its retrieval, the parser of what a model asks of it, and merging."""

from __future__ import annotations
