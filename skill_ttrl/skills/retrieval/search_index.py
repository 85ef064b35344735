"""One snapshot made ready for searching: its skills in rows, their vectors, and the exact scores of a question."""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from skill_ttrl.errors import ConfigError
from skill_ttrl.skills.retrieval.embedders import EMBED_CHARS, Embedder, Vectors
from skill_ttrl.skills.retrieval.index import VectorIndex
from skill_ttrl.skills.settings import Searched
from skill_ttrl.skills.snapshot import Snapshot, fits_type
from skill_ttrl.types import Skill, Tier

Rows = NDArray[np.int64]
Scores = NDArray[np.float64]

EMBED_AT_ONCE = 4096  # an index keeps what it was given, so a start that is killed has not lost everything
BLOCK_ROWS = 65_536  # rows whose vectors are copied at once
CACHED_FILTERS = 64
MOST_WORDINGS = 8
"""Wordings of one skill's when_to_apply that are searched."""
_WORDINGS = re.compile(r": |, or |\n")


def skill_text(skill: Skill) -> str:
    """Return the searched text of a skill: title, when_to_apply and text, one per line, cut to `EMBED_CHARS` characters."""
    return "\n".join(part for part in (skill.title, skill.when_to_apply, skill.text) if part)[:EMBED_CHARS]


def searched_texts(skill: Skill, searched: Searched) -> list[str]:
    """Texts of a skill that a query is compared with, each for itself: the best counts.

    `all`: `skill_text`. `when_to_apply`: each wording in it (`put a hot X in Y, or heat some X`), where it has one.
    """
    if searched == "all":
        return [skill_text(skill)]
    wordings = [text[:EMBED_CHARS] for text in _WORDINGS.split(skill.when_to_apply) if text.strip()]
    return wordings[:MOST_WORDINGS] or [skill_text(skill)]


@dataclass(frozen=True)
class ScoredQuery:
    """Scoring inputs of a query: a vector of shape (D,), and the weighted keyword scores of all rows, shape (N,)."""

    vector: NDArray[np.float32] | None
    cosine_weight: float
    keyword: Scores | None

    def has_content(self, rows: Rows) -> bool:
        """True if the query has a nonzero vector, or a nonzero keyword score in these rows."""
        vector = self.vector is not None and bool(self.vector.any())
        return vector or (self.keyword is not None and bool(self.keyword[rows].any()))

    def scores(self, index: SearchIndex, rows: Rows) -> Scores:
        """Exact scores of these rows. Each row's sum runs over that row alone, so company never changes it."""
        total = np.zeros(len(rows))
        if self.vector is not None:
            total += self.cosine_weight * (index.vectors[rows].astype(np.float64) * self.vector).sum(axis=1)
        if self.keyword is not None:
            total += self.keyword[rows]
        return total

    def prefilter(self, index: SearchIndex, rows: Rows, k: int) -> Rows:
        """Rows that can be among the first k: by scores in float32, with room for all their rounding errors."""
        if len(rows) <= k:
            return rows
        total = np.zeros(len(rows), dtype=np.float64)
        room = 1e-12
        if self.vector is not None:
            everything = len(rows) == len(index.skills)
            for start in range(0, len(rows), BLOCK_ROWS):
                block = slice(start, start + BLOCK_ROWS)
                vectors = index.vectors[block if everything else rows[block]]
                total[block] += self.cosine_weight * (vectors @ self.vector)
            room += 4 * len(self.vector) * float(np.finfo(np.float32).eps)
        if self.keyword is not None:
            total += self.keyword[rows]
        picked: Rows = rows[total >= np.partition(total, -k)[-k] - room]
        return picked


class SearchIndex:
    """Search index of one snapshot. Rows are skills in the order of ids, one row for each of their searched texts."""

    def __init__(self, snapshot: Snapshot, searched: Searched = "all") -> None:
        self.snapshot = snapshot
        found = [(skill, text) for skill in snapshot for text in searched_texts(skill, searched)]
        self.skills: tuple[Skill, ...] = tuple(skill for skill, _ in found)
        self.texts = [text for _, text in found]
        self.most_rows = 1 if searched == "all" else MOST_WORDINGS
        """Most rows of one skill."""
        self.vectors: Vectors = np.zeros((len(self.skills), 0), dtype=np.float32)
        self.of_task: NDArray[np.bool_] = np.array([skill.tier == "task" for skill in self.skills], dtype=bool)
        self._eligible: dict[tuple[str | None, frozenset[Tier] | None], Rows] = {}

    def eligible(self, task_type: str | None, tiers: Collection[Tier] | None) -> Rows:
        """Rows of the skills that may be found."""
        key = (task_type or None, None if tiers is None else frozenset(tiers))
        if key not in self._eligible:
            if len(self._eligible) >= CACHED_FILTERS:
                self._eligible.clear()
            wanted, among = key
            fits = [(among is None or skill.tier in among) and fits_type(skill, wanted) for skill in self.skills]
            rows: Rows = np.flatnonzero(np.array(fits, dtype=bool)).astype(np.int64)
            self._eligible[key] = rows
        return self._eligible[key]


class EmbeddingCache:
    """An embedder and the index that keeps what it made."""

    def __init__(self, embedder: Embedder, store: VectorIndex) -> None:
        self.store = store
        self.embedder = embedder
        self._lock = threading.Lock()

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Vectors of the texts, checked: an embedder may be the user's own."""
        with self._lock:
            made = np.asarray(self.embedder.embed(texts), dtype=np.float32)
        expected = (len(texts), self.embedder.dimension)
        if made.shape != expected:
            raise ConfigError(
                f"The embedder {self.embedder.name!r} returned an array of shape {made.shape}, not {expected}."
            )
        lengths = np.linalg.norm(made, axis=1)
        if not np.all((np.abs(lengths - 1) < 1e-3) | (lengths == 0)):
            raise ConfigError(f"The embedder {self.embedder.name!r} returned vectors whose length is not 1.")
        return made

    def load_vectors(self, index: SearchIndex) -> None:
        """Give the skills their vectors: stored ones, and new ones, which are stored from now on."""
        keys = [hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest() for text in index.texts]
        text_of = dict(zip(keys, index.texts, strict=True))
        held = self.store.fetch(list(text_of))
        missing = [key for key in text_of if key not in held]
        for start in range(0, len(missing), EMBED_AT_ONCE):
            batch = missing[start : start + EMBED_AT_ONCE]
            made = self.embed([text_of[key] for key in batch])
            self.store.add(batch, made)
            held.update(zip(batch, made, strict=True))
        index.vectors = np.stack([held[key] for key in keys])
        self.store.prune(text_of.keys())
