"""Stores of the vectors of skill texts. A store saves work and never decides a result.

Vectors are keyed by a hash of the text they were made from, so a changed text is a new vector, equal texts share one, and
those of older versions of a bank stay usable. A store that is deleted, damaged or out of date loses nothing: what it does
not hold is embedded again.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from skill_ttrl.skills.retrieval.embedders import Vectors


class MemoryIndex:
    """Vectors in this process: nothing on the disk, nothing approximate, everything embedded again at the next start."""

    def __init__(self) -> None:
        self._vectors: dict[str, NDArray[np.float32]] = {}

    def fetch(self, keys: Sequence[str]) -> dict[str, NDArray[np.float32]]:
        """The vectors that are stored, bit for bit as they were added."""
        return {key: self._vectors[key] for key in keys if key in self._vectors}

    def add(self, keys: Sequence[str], vectors: Vectors) -> None:
        """Store these vectors, of shape (len(keys), dimension)."""
        self._vectors.update(zip(keys, vectors, strict=True))

    def close(self) -> None:
        """Nothing is open."""
