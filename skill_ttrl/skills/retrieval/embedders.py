"""Embedder: text in, vectors of length 1 out, so that a dot product is a cosine.

The vector of a text must not depend on the other texts of its batch, or a rebuilt index would hold other vectors than the one
it replaces. `make.make_embedder` finds one by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float32]

EMBED_CHARS = 4096
"""Only so many characters of a text are embedded: skill texts are untrusted and may be of any size."""


class Embedder(Protocol):
    """Turns texts into vectors. The same text gives the same bits, alone or among others, today and tomorrow."""

    name: str
    """Fingerprint: kind, model, revision and dimension. Vectors of two embedders are comparable if theirs are equal."""
    dimension: int

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Vectors of shape (len(texts), dimension), rows of Euclidean length 1; zeros for a text without content."""
        ...


def normalised(rows: NDArray[np.float64]) -> Vectors:
    """Rows divided by their Euclidean length; rows of zeros stay."""
    length = np.sqrt((rows * rows).sum(axis=1, keepdims=True))
    return (rows / np.where(length > 0, length, 1.0)).astype(np.float32)
