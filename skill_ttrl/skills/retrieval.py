"""Which skills a query finds.

Retrieval is defined as exact scores over one frozen snapshot, ties by id; how the vectors are kept never changes a list:

    embedding   cosine of the embedder's vectors of query and skill, products and sum in float64
    keyword     BM25 (Robertson and Zaragoza 2009; k1 = 1.5, b = 0.75, the variant of Lucene) over the whole snapshot;
                skills that share no word with the query are not found, unless none shares one and the bank has a fallback
    hybrid      0.5 x cosine + 0.5 x BM25 divided by the query's best BM25 among the eligible skills
    template    as keyword; prompts are given skills by type of task, without a query (`by_template`)

A query without content (blank, or nothing the embedder knows) finds nothing. `min_score` is SkillRL's delta: it leaves out skills
for a type of task that score less. General skills and mistakes hold for other tasks too; they are left out below 0 alone, where
they have less than nothing in common with the query.
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
import threading
from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skill_ttrl.config.skills import SkillsConfig
from skill_ttrl.errors import ConfigError, MissingDependencyError
from skill_ttrl.registry import naming
from skill_ttrl.skills.changes import Snapshot, fits_type
from skill_ttrl.skills.chroma import ChromaIndex
from skill_ttrl.skills.embedders import EMBED_CHARS, Embedder, Vectors, make_embedder, words_of
from skill_ttrl.skills.log import BankSettings, Fallback, Mode, Searched
from skill_ttrl.skills.types import grouped, round_robin
from skill_ttrl.types import Skill, Tier

Rows = NDArray[np.int64]
Scores = NDArray[np.float64]

EMBED_AT_ONCE = 4096  # an index keeps what it was given, so a start that is killed has not lost everything
MOST_WORDINGS = 8
"""Wordings of one skill's when_to_apply that are searched."""
_WORDINGS = re.compile(r": |, or |\n")
WEIGHTS: dict[str, tuple[float, float]] = {
    "embedding": (1.0, 0.0),
    "keyword": (0.0, 1.0),
    "hybrid": (0.5, 0.5),
    "template": (0.0, 1.0),
}
"""Of cosine and BM25."""
CACHED_VERSIONS = 4
FLOOR = 0.0
"""Under a threshold of their own for task skills, others are found from here: below it they have less than nothing in common
with the query."""


@dataclass(frozen=True)
class Hit:
    """A skill that a query found."""

    skill: Skill
    score: float
    """A cosine in [-1, 1], a BM25 score above 0, or their weighted sum, by the retriever's mode."""
    fallback: bool = False
    """True if it shares no word with the query, as no skill does: it is one of the most useful ones, with the score 0."""


class Retriever:
    """Finds skills of a snapshot. Keeps the vectors of the last few snapshots in memory.

    Args:
        mode: `embedding`, `keyword`, `hybrid` or `template`.
        embedder: makes the vectors; not needed for `keyword` and `template`.
        index: keeps the vectors; likewise.
        min_score: skills of the tier `task` that score less are not found; those of other tiers are not found below 0, or below
            `min_score` where that is negative. None: no threshold.
        searched: what of a skill queries are compared with (`searched_texts`).
        fallback: what a query finds by keywords where no skill shares a word with it: nothing (`none`), or the skills of the
            type and tiers asked for with the most success per use (`most_useful`).
    """

    def __init__(
        self,
        mode: Mode,
        embedder: Embedder | None = None,
        index: MemoryIndex | ChromaIndex | None = None,
        *,
        min_score: float | None = None,
        searched: Searched = "all",
        fallback: Fallback = "none",
    ) -> None:
        if mode not in WEIGHTS:
            raise ConfigError(f"Unknown retrieval {mode!r}. Known: {', '.join(WEIGHTS)}.")
        self.mode: Mode = mode
        self._searched: Searched = searched
        self._falls_back = fallback == "most_useful" and not WEIGHTS[mode][0]
        self._cosine_weight, self._keyword_weight = WEIGHTS[mode]
        if self._cosine_weight and (embedder is None or index is None):
            raise ConfigError(f"Retrieval by {mode} needs an embedder and an index.")
        self.embedder = embedder if self._cosine_weight else None
        """Makes the vectors; None for `keyword` and `template`."""
        self._store, self._embedding = index or MemoryIndex(), threading.Lock()
        self._min_score = -np.inf if min_score is None else min_score
        self._min_score_of_others = min(self._min_score, FLOOR)
        self._lock = threading.Lock()  # rollouts that run ahead search from several threads
        self._versions: OrderedDict[int, tuple[SearchIndex, _Keywords | None]] = OrderedDict()

    def search(
        self,
        snapshot: Snapshot,
        queries: Sequence[str],
        *,
        task_type: str | None = None,
        tiers: Collection[Tier] | None = None,
        k: int = 6,
    ) -> list[list[Hit]]:
        """For each query the `k` skills of the highest score, best first, equal scores in the order of ids.

        Args:
            snapshot: the version to search.
            queries: texts, of which the first `EMBED_CHARS` characters count.
            task_type: look only at skills for this type, for any type, or of the general tier; None or empty: at all.
            tiers: look only at these tiers; None: at all.
            k: most skills for one query.
        """
        queries = [query[:EMBED_CHARS] for query in queries]
        found: dict[str, list[Hit]] = {query: [] for query in queries}  # samples of a group ask alike
        asked = [query for query in found if query.strip()]
        if k < 1 or not len(snapshot) or not asked:
            return [[] for _ in queries]
        index, keywords = self._version(snapshot)
        rows = index.eligible(task_type, tiers)
        if len(rows):
            vectors = None if self.embedder is None else self.embed(asked)
            for at, query in enumerate(asked):
                scores = None if keywords is None else self._weighted(keywords.scores(query), rows)
                vector = None if vectors is None else vectors[at]
                says_something = (vector is not None and vector.any()) or (scores is not None and scores[rows].any())
                if says_something:
                    found[query] = self._find(index, rows, vector, scores, k)
                elif self._falls_back and words_of(query):
                    skills = dict.fromkeys(index.skills[row] for row in rows)
                    found[query] = [Hit(skill, 0.0, fallback=True) for skill in most_useful(skills)[:k]]
        return [list(found[query]) for query in queries]

    def rank(self, queries: Sequence[str], skills: Sequence[Sequence[Skill]], k: int) -> list[list[Hit]]:
        """The best `k` of each query's own few skills, which are in no snapshot and are not kept; by cosine.

        Raises:
            ConfigError: the retriever has no embedder (`keyword`).
        """
        if self.embedder is None:
            raise ConfigError(
                "Skills outside of the bank are ranked by cosine, but retrieval by keyword has no embedder."
            )
        queries = [query[:EMBED_CHARS] for query in queries]
        texts = list(dict.fromkeys([*queries, *(skill_text(skill) for own in skills for skill in own)]))
        vectors = dict(zip(texts, self.embed(texts).astype(np.float64), strict=True)) if texts else {}
        ranked = []
        for query, own in zip(queries, skills, strict=True):
            hits = [Hit(skill, float((vectors[skill_text(skill)] * vectors[query]).sum())) for skill in own]
            near = [hit for hit in hits if hit.score >= self._least(hit.skill.tier) and vectors[query].any()]
            ranked.append(sorted(near, key=lambda hit: (-hit.score, hit.skill.id))[:k])
        return ranked

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Vectors of texts, shape (N, D), checked: the embedder, which there must be, may be the user's own. One thread at a time calls it."""
        assert self.embedder is not None
        with self._embedding, naming(f"The embedder {self.embedder.name!r}"):
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

    def _load_vectors(self, index: SearchIndex) -> None:
        """Give the skills their vectors: stored ones, and new ones, which are stored from now on."""
        keys = [hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest() for text in index.texts]
        text_of = dict(zip(keys, index.texts, strict=True))
        held = self._store.fetch(list(text_of))
        missing = [key for key in text_of if key not in held]
        for start in range(0, len(missing), EMBED_AT_ONCE):
            batch = missing[start : start + EMBED_AT_ONCE]
            made = self.embed([text_of[key] for key in batch])
            self._store.add(batch, made)
            held.update(zip(batch, made, strict=True))
        index.vectors = np.stack([held[key] for key in keys])

    def close(self) -> None:
        """Give back what the index holds open."""
        self._versions.clear()
        self._store.close()

    def _least(self, tier: Tier) -> float:
        return self._min_score if tier == "task" else self._min_score_of_others

    def _find(
        self, index: SearchIndex, rows: Rows, vector: NDArray[np.float32] | None, keyword: Scores | None, k: int
    ) -> list[Hit]:
        """The best `k` skills of these rows. Each row's sum runs over that row alone, so company never changes a score."""
        scores = np.zeros(len(rows))
        if vector is not None:
            scores += self._cosine_weight * (index.vectors[rows].astype(np.float64) * vector).sum(axis=1)
        if keyword is not None:
            scores += keyword[rows]
        found = scores >= np.where(index.of_task[rows], self._min_score, self._min_score_of_others)
        if vector is None:
            found &= scores > 0  # no shared word
        best: dict[str, Hit] = {}
        for at in np.lexsort((rows, -scores)):  # of equal scores the first id
            skill = index.skills[rows[at]]
            if found[at] and len(best) < k:
                best.setdefault(skill.id, Hit(skill, float(scores[at])))
        return list(best.values())

    def _weighted(self, bm25: Scores, rows: Rows) -> Scores:
        """Weight BM25 scores, shape (N,). In `hybrid` mode they are first divided by the best score among the eligible `rows`."""
        best = bm25[rows].max() if self._cosine_weight else 1.0
        return self._keyword_weight * bm25 / best if best > 0 else bm25

    def _version(self, snapshot: Snapshot) -> tuple[SearchIndex, _Keywords | None]:
        """Return the index of a snapshot, and its BM25 scorer if the mode has one; both are cached."""
        with self._lock:
            if id(snapshot) not in self._versions:
                index = SearchIndex(snapshot, self._searched)
                if self.embedder is not None:
                    self._load_vectors(index)
                keywords = _Keywords(index.texts) if self._keyword_weight else None
                # The index keeps the snapshot alive: its id is not used again.
                self._versions[id(snapshot)] = index, keywords
                if len(self._versions) > CACHED_VERSIONS:
                    self._versions.popitem(last=False)
            self._versions.move_to_end(id(snapshot))
            return self._versions[id(snapshot)]


class _Keywords:
    """BM25 over a list of texts."""

    def __init__(self, texts: Sequence[str]) -> None:
        import bm25s  # here: its import takes a quarter of a second

        words = [words_of(text) for text in texts]
        self._known = {word for found in words for word in found}
        self._count = len(texts)
        self._bm25: Any = bm25s.BM25(method="lucene", k1=1.5, b=0.75)
        if self._known:
            self._bm25.index(words, show_progress=False)

    def scores(self, query: str) -> Scores:
        """BM25 of every text, shape (N,), 0 where no word is shared."""
        words = [word for word in words_of(query) if word in self._known]
        if not words:
            return np.zeros(self._count)
        return np.asarray(self._bm25.get_scores(words), dtype=np.float64)


# One snapshot made ready for searching: its skills in rows, their vectors, and the exact scores of a query.


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


class SearchIndex:
    """Search index of one snapshot. Rows are skills in the order of ids, one row for each of their searched texts."""

    def __init__(self, snapshot: Snapshot, searched: Searched = "all") -> None:
        self.snapshot = snapshot
        found = [(skill, text) for skill in snapshot for text in searched_texts(skill, searched)]
        self.skills: tuple[Skill, ...] = tuple(skill for skill, _ in found)
        self.texts = [text for _, text in found]
        self.vectors: Vectors = np.zeros((len(self.skills), 0), dtype=np.float32)
        self.of_task: NDArray[np.bool_] = np.array([skill.tier == "task" for skill in self.skills], dtype=bool)

    def eligible(self, task_type: str | None, tiers: Collection[Tier] | None) -> Rows:
        """Rows of the skills that may be found."""
        fits = [(tiers is None or skill.tier in tiers) and fits_type(skill, task_type) for skill in self.skills]
        return np.flatnonzero(np.array(fits, dtype=bool)).astype(np.int64)


# Stores of vectors, by a hash of the text that they were made from: a changed text is a new vector, and those of older versions of a bank
# stay usable. A store saves work and never decides a result: what it does not hold is embedded again.


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


MISTAKES = 5
"""Most mistakes in a prompt under `template` (SkillRL's code)."""
TIERS: tuple[Tier, ...] = ("general", "task", "mistake")
POOL = 4
"""Candidates ranked per prompt, as a multiple of the skills it has room for."""
PRIOR_USES = 8
"""Uses with the bank's mean success that each skill's record begins with: a few uses decide little."""


@dataclass(frozen=True)
class Query:
    """A query to the bank."""

    text: str
    task_type: str = ""
    """Kind of task it comes from; empty for any."""
    notes: tuple[Skill, ...] = ()
    """Skills that only this query can find: those that its rollout wrote earlier."""


@dataclass(frozen=True)
class BankView:
    """A frozen bank and its retriever; queries come in batches."""

    snapshot: Snapshot
    retriever: Retriever

    def find(self, queries: Sequence[Query], k: int) -> list[tuple[Skill, ...]]:
        """The `k` best skills for each query, best first, ties by id; a query's own notes are among them."""
        found = self._search(queries, None, k)
        if any(query.notes for query in queries):
            own = self.retriever.rank([query.text for query in queries], [query.notes for query in queries], k)
            for place, notes in enumerate(own):  # a note that is in the bank by now counts once
                by_id = {hit.skill.id: hit for hit in (*notes, *found[place])}
                found[place] = sorted(by_id.values(), key=lambda hit: (-hit.score, hit.skill.id))[:k]
        return [tuple(hit.skill for hit in hits) for hits in found]

    def _search(self, queries: Sequence[Query], tiers: Collection[Tier] | None, k: int) -> list[list[Hit]]:
        """Hits for each query in order; queries of one task type are searched together."""
        found: list[list[Hit]] = [[] for _ in queries]
        for task_type, places in grouped(range(len(queries)), key=lambda place: queries[place].task_type).items():
            texts = [queries[place].text for place in places]
            answers = self.retriever.search(self.snapshot, texts, task_type=task_type, tiers=tiers, k=k)
            for place, hits in zip(places, answers, strict=True):
                found[place] = hits
        return found

    def select_for_prompts(self, queries: Sequence[Query], k: int) -> list[tuple[Skill, ...]]:
        """At most `k` skills for each prompt, taken from the tiers in turn: the best general one, the best for the task,
        the best warning, then the second of each. Within a tier, those of the highest scores are ordered by score times record
        (`lift`). Under `template` they are chosen by type of task (`by_template`).
        """
        if k == 0:
            return [()] * len(queries)
        if self.retriever.mode == "template":
            kinds = {query.task_type: by_template(self.snapshot, query.task_type, k) for query in queries}
            return [tuple(round_robin(kinds[query.task_type])) for query in queries]
        tiers = [self._search(queries, (tier,), POOL * k) for tier in TIERS]
        uses = sum(skill.stats.uses for skill in self.snapshot)
        successes = sum(skill.stats.successes for skill in self.snapshot)
        success = successes / uses if successes else None

        def worth(hit: Hit) -> float:
            """A score below 0 stays as it is: a good record must not make it worse."""
            return hit.score * lift(hit.skill, success) if hit.score > 0 else hit.score

        columns = (
            [[hit.skill for hit in sorted(hits[place], key=worth, reverse=True)] for hits in tiers]
            for place in range(len(queries))
        )
        return [tuple(round_robin(each)[:k]) for each in columns]


def lift(skill: Skill, success: float | None) -> float:
    """How much better than its bank's mean success per use (None: none yet) a skill serves, with `PRIOR_USES` uses of that mean added; 1 if
    unused.

    Scores of general skills hardly differ in what they say of a task: without the record, the one that shares the most words
    fills nearly all prompts, however it serves.
    """
    if success is None:
        return 1.0
    stats = skill.stats
    return (stats.successes / success + PRIOR_USES) / (stats.uses + PRIOR_USES)


def by_template(snapshot: Snapshot, task_type: str, k: int) -> list[list[Skill]]:
    """SkillRL's own way of choosing skills for a prompt, without a query: `k` general ones, all for the task's type, five mistakes.

    Each tier is ordered by record, best first, ties in the order of the bank. An evolved skill keeps its place only as long as it
    serves as well; in SkillRL's code all evolved ones come first, which leaves the others no place after two rounds.

    Args:
        snapshot: the frozen bank.
        task_type: what the task is, in the bank's words; empty for any.
        k: most general skills.
    """
    fitting = [skill for skill in snapshot if fits_type(skill, task_type)]
    general, task, mistakes = (most_useful(skill for skill in fitting if skill.tier == tier) for tier in TIERS)
    return [general[:k], task, mistakes[:MISTAKES]]


def most_useful(skills: Iterable[Skill]) -> list[Skill]:
    """Order skills by success per use, best first, one success and one failure added, so that an unused skill counts as 1/2 (as in eviction)."""
    # Stable: equal ones stay in the order of the bank.
    return sorted(skills, key=lambda skill: -(skill.stats.successes + 1) / (skill.stats.uses + 2))


def make_retriever(settings: BankSettings, folder: Path | None = None) -> Retriever:
    """The retriever of a bank. `keyword` and `template` open no embedder and no index.

    Args:
        settings: the bank's.
        folder: the bank's folder, for an embedded Chroma.

    Raises:
        ConfigError: there is no such embedder, or Chroma has no folder.
        SkillBankError: the index cannot be used (see `ChromaIndex`).
        ModelError: the embedder's model cannot be loaded.
        MissingDependencyError: a package of the extra `skills` is not installed.
    """
    mode, least = settings.retrieval, settings.min_score
    if not settings.embeds:
        return Retriever(mode, min_score=least, searched=settings.searched, fallback=settings.fallback)
    if settings.index == "chroma" and folder is None:
        raise ConfigError("index 'chroma' needs the bank's folder. Use 'memory' for a bank in memory.")
    embedder = make_embedder(settings.embedder, settings.embedder_model, settings.embedder_revision)
    index = MemoryIndex() if settings.index == "memory" or folder is None else ChromaIndex(embedder.name, folder)
    return Retriever(mode, embedder, index, min_score=least, searched=settings.searched)


_PACKAGES = {
    "skills.index: chroma": ("chromadb", "skills.index=memory"),
    "skills.embedder: sentence-transformers": ("sentence_transformers", "skills.embedder=hash"),
}
"""Setting → the package that it needs, and what works without."""


def check_packages(skills: SkillsConfig) -> None:
    """Refuse skills that cannot be found for want of a package, without importing it.

    Raises:
        MissingDependencyError: one is not installed.
    """
    asked = {f"skills.index: {skills.index}", f"skills.embedder: {skills.embedder}"} if skills.embeds else set()
    for setting in sorted(asked & _PACKAGES.keys()):
        package, other = _PACKAGES[setting]
        if importlib.util.find_spec(package) is None:
            lacks = MissingDependencyError.for_extra(setting, "skills", package)
            raise MissingDependencyError(f"{lacks}, or set {other}.")
