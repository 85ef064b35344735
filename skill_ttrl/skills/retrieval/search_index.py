"""One snapshot made ready for searching: its skills in rows, their vectors, and the exact scores of a question."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from skill_ttrl.errors import ConfigError
from skill_ttrl.skills.bank.snapshot import Snapshot
from skill_ttrl.skills.retrieval.embedders import EMBED_CHARS, Embedder, Vectors
from skill_ttrl.skills.retrieval.index import VectorIndex
from skill_ttrl.types import Skill, Tier

Rows = NDArray[np.int64]
Scores = NDArray[np.float64]

EMBED_AT_ONCE = 4096  # an index keeps what it was given, so a start that is killed has not lost everything
CACHED_FILTERS = 64


def skill_text(skill: Skill) -> str:
    """What of a skill is searched: title, when_to_apply and text, one below the other, `EMBED_CHARS` characters of it."""
    return "\n".join(part for part in (skill.title, skill.when_to_apply, skill.text) if part)[:EMBED_CHARS]


@dataclass(frozen=True)
class Question:
    """What a query weighs: a vector of shape (D,), and the weighted keyword scores of all skills, shape (N,)."""

    vector: NDArray[np.float32] | None
    cosine_weight: float
    keyword: Scores | None

    def has_content(self, rows: Rows) -> bool:
        """Whether there is anything to compare by."""
        vector = self.vector is not None and bool(self.vector.any())
        return vector or (self.keyword is not None and bool(self.keyword[rows].any()))

    def scores(self, view: View, rows: Rows) -> Scores:
        """Exact scores of these rows. Each row's sum runs over that row alone, so company never changes it."""
        total = np.zeros(len(rows))
        if self.vector is not None:
            total += self.cosine_weight * (view.vectors[rows].astype(np.float64) * self.vector).sum(axis=1)
        if self.keyword is not None:
            total += self.keyword[rows]
        return total

    def likely(self, view: View, rows: Rows, k: int) -> Rows:
        """Rows that can be among the first k: by scores in float32, with room for all their rounding errors."""
        if len(rows) <= k:
            return rows
        total = np.zeros(len(rows), dtype=np.float64)
        room = 1e-12
        if self.vector is not None:
            vectors = view.vectors if len(rows) == len(view.skills) else view.vectors[rows]
            total += self.cosine_weight * (vectors @ self.vector)
            room += 4 * len(self.vector) * float(np.finfo(np.float32).eps)
        if self.keyword is not None:
            total += self.keyword[rows]
        likely: Rows = rows[total >= np.partition(total, -k)[-k] - room]
        return likely


class View:
    """What searching one snapshot needs. Rows are skills in the order of ids."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.skills: tuple[Skill, ...] = tuple(snapshot)
        self.texts = [skill_text(skill) for skill in self.skills]
        self.keys: list[str] = []
        self.rows_of: dict[str, list[int]] = {}  # by key: the rows with its vector
        self.vectors: Vectors = np.zeros((len(self.skills), 0), dtype=np.float32)
        self.of_task: NDArray[np.bool_] = np.array([skill.tier == "task" for skill in self.skills], dtype=bool)
        self.generation = 0
        self._eligible: dict[tuple[str | None, frozenset[Tier] | None], Rows] = {}

    def eligible(self, task_type: str | None, tiers: Collection[Tier] | None) -> Rows:
        """Rows of the skills that may be found."""
        key = (task_type or None, None if tiers is None else frozenset(tiers))
        if key not in self._eligible:
            if len(self._eligible) >= CACHED_FILTERS:
                self._eligible.clear()
            wanted, among = key
            fits = [
                (among is None or skill.tier in among)
                and (wanted is None or skill.tier == "general" or skill.task_type in ("", wanted))
                for skill in self.skills
            ]
            rows: Rows = np.flatnonzero(np.array(fits, dtype=bool)).astype(np.int64)
            self._eligible[key] = rows
        return self._eligible[key]


class EmbeddingCache:
    """An embedder and the index that keeps what it made."""

    def __init__(self, embedder: Embedder, index: VectorIndex) -> None:
        self.index = index
        self.embedder = embedder

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Vectors of the texts, checked: an embedder may be the user's own."""
        made = np.asarray(self.embedder.embed(texts), dtype=np.float32)
        expected = (len(texts), self.embedder.dimension)
        if made.shape != expected:
            raise ConfigError(
                f"The embedder {self.embedder.name!r} gave an array of shape {made.shape}, not {expected}."
            )
        lengths = np.linalg.norm(made, axis=1)
        if not np.all((np.abs(lengths - 1) < 1e-3) | (lengths == 0)):
            raise ConfigError(f"The embedder {self.embedder.name!r} gave vectors that are not of length 1.")
        return made

    def fill(self, view: View) -> None:
        """Give the view its vectors: those that the index holds, and new ones, which it holds from now on."""
        view.keys = [hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest() for text in view.texts]
        text_of = dict(zip(view.keys, view.texts, strict=True))
        held = self.index.fetch(list(text_of))
        missing = [key for key in text_of if key not in held]
        for start in range(0, len(missing), EMBED_AT_ONCE):
            keys = missing[start : start + EMBED_AT_ONCE]
            made = self.embed([text_of[key] for key in keys])
            self.index.add(keys, made)
            held.update(zip(keys, made, strict=True))
        view.vectors = np.stack([held[key] for key in view.keys])
        # Equal vectors hide each other in a graph of nearest neighbours, so a key that is named stands for all of them.
        same: dict[bytes, list[int]] = {}
        for row, key in enumerate(view.keys):
            view.rows_of[key] = same.setdefault(view.vectors[row].tobytes(), [])
            view.rows_of[key].append(row)
        self.index.prune(text_of.keys())
        view.generation = self.index.generation

    def hold(self, view: View) -> None:
        """Add again what the index has lost since: vectors that another version did not need, or a damaged folder."""
        if view.generation == self.index.generation:
            return
        held = self.index.fetch(list(view.rows_of))
        missing = [key for key in view.rows_of if key not in held]
        if missing:
            self.index.add(missing, view.vectors[[view.rows_of[key][0] for key in missing]])
        view.generation = self.index.generation
