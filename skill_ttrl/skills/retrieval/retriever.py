"""Which skills a query finds.

Retrieval is defined as exact scores over one frozen snapshot, ties by id; how the vectors are kept never changes a list:

    embedding   cosine of the embedder's vectors of query and skill, products and sum in float64
    keyword     BM25 (Robertson and Zaragoza 2009; k1 = 1.5, b = 0.75, the variant of Lucene) over the whole snapshot;
                skills that share no word with the query are not found
    hybrid      0.5 x cosine + 0.5 x BM25 divided by the query's best BM25 among the eligible skills
    template    as keyword; prompts are given skills by type of task, without a query (`skills/retrieval/template.py`)

A query without content (blank, or nothing the embedder knows) finds nothing. `min_score` is SkillRL's delta: it leaves out skills
for a type of task that score less. General skills and mistakes hold for other tasks too; they are left out below 0 alone, where
they have less than nothing in common with the query. Up to `EXACT_BELOW` eligible skills all are scored. Above, Chroma names candidates, more than are needed; they are scored in the same way, and more are asked for
until no skill outside what it named can belong to the first k.
"""

from __future__ import annotations

import importlib.util
from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from skill_ttrl.config import SkillsConfig
from skill_ttrl.errors import ConfigError, MissingDependencyError
from skill_ttrl.skills.bank.snapshot import Snapshot
from skill_ttrl.skills.retrieval.embedders import DEFAULT_MODEL, EMBED_CHARS, Embedder, make_embedder, words_of
from skill_ttrl.skills.retrieval.index import ChromaIndex, MemoryIndex, VectorIndex
from skill_ttrl.skills.retrieval.search_index import EmbeddingCache, Question, Rows, Scores, View, skill_text
from skill_ttrl.types import Skill, Tier

Mode = Literal["embedding", "keyword", "hybrid", "template"]

WEIGHTS: dict[str, tuple[float, float]] = {
    "embedding": (1.0, 0.0),
    "keyword": (0.0, 1.0),
    "hybrid": (0.5, 0.5),
    "template": (0.0, 1.0),
}
"""Of cosine and BM25."""
EXACT_BELOW = 65_536
"""Up to so many eligible skills all are scored: at 50,000 that is faster than naming candidates (docs/retrieval-results.md)."""
FIRST_CANDIDATES = 32
MOST_CANDIDATES = 1024
"""If so many candidates do not settle the first k, all skills are scored."""
CHROMA_ROUNDING = 1e-5  # of a cosine taken from its float32 distance
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


def make_retriever(
    *,
    mode: Mode = "embedding",
    embedder: str = "hash",
    embedder_model: str = DEFAULT_MODEL,
    embedder_revision: str | None = None,
    index: Literal["memory", "chroma"] = "memory",
    folder: Path | None = None,
    chroma_server: str | None = None,
    min_score: float | None = None,
) -> Retriever:
    """A retriever by names, as the `skills` section of a config gives them. `keyword` and `template` open no embedder and no
    index.

    Args:
        mode: see the module.
        embedder: see `embed.make_embedder`; so are `embedder_model` and `embedder_revision`.
        embedder_model: Hugging Face id or folder.
        embedder_revision: commit of a hub model.
        index: where vectors are kept; both give the same lists.
        folder: the bank's folder, for an embedded Chroma.
        chroma_server: `host:port`; takes the place of the embedded Chroma.
        min_score: as for `Retriever`.

    Raises:
        ConfigError: a name that is not known, or Chroma without a folder or server.
        SkillBankError: the index cannot be used (see `ChromaIndex`).
        ModelError: the embedder's model cannot be loaded.
        MissingDependencyError: a package of the extra `skills` is not installed.
    """
    if mode in ("keyword", "template"):
        return Retriever(mode, min_score=min_score)
    if index not in ("memory", "chroma"):
        raise ConfigError(f"Unknown index {index!r}. Known: chroma, memory.")
    if index == "chroma" and folder is None and chroma_server is None:
        raise ConfigError(
            "index 'chroma' needs the bank's folder or a chroma_server. Use 'memory' for a bank in memory."
        )
    made = make_embedder(embedder, embedder_model, embedder_revision)
    if index == "memory":
        return Retriever(mode, made, MemoryIndex(), min_score=min_score)
    chroma = ChromaIndex(made.name, folder=None if chroma_server else folder, server=chroma_server)
    return Retriever(mode, made, chroma, min_score=min_score)


def check_packages(skills: SkillsConfig) -> None:
    """Refuse skills that cannot be found for want of a package, without importing it.

    Raises:
        MissingDependencyError: one is not installed.
    """
    asks = skills.retrieval != "template" or skills.max_retrievals > 0
    wanted = ["bm25s"] if skills.retrieval != "embedding" and asks else []
    if skills.embeds:
        wanted += ["chromadb"] * (skills.index == "chroma")
        wanted += ["sentence_transformers"] * (skills.embedder == "sentence-transformers")
    for name in wanted:
        if importlib.util.find_spec(name) is None:
            raise MissingDependencyError.for_extra(f"The skill bank ({name})", "skills")


class Retriever:
    """Finds skills of a snapshot. Keeps the vectors of the last few snapshots in memory; not for several threads at once.

    Args:
        mode: `embedding`, `keyword`, `hybrid` or `template`.
        embedder: makes the vectors; not needed for `keyword` and `template`.
        index: keeps the vectors; likewise.
        min_score: skills of the tier `task` that score less are not found; those of other tiers are not found below 0, or below
            `min_score` where that is negative. None: no threshold.
        exact_below: number of eligible skills up to which all are scored.
    """

    def __init__(
        self,
        mode: Mode,
        embedder: Embedder | None = None,
        index: VectorIndex | None = None,
        *,
        min_score: float | None = None,
        exact_below: int = EXACT_BELOW,
    ) -> None:
        if mode not in WEIGHTS:
            raise ConfigError(f"Unknown retrieval {mode!r}. Known: {', '.join(WEIGHTS)}.")
        self.mode: Mode = mode
        self._cosine_weight, self._keyword_weight = WEIGHTS[mode]
        self._vectors = None
        if self._cosine_weight:
            if embedder is None or index is None:
                raise ConfigError(f"Retrieval by {mode} needs an embedder and an index.")
            self._vectors = EmbeddingCache(embedder, index)
        self._min_score = -np.inf if min_score is None else min_score
        self._min_score_of_others = min(self._min_score, FLOOR)
        self._exact_below = exact_below
        self._versions: OrderedDict[int, tuple[View, _Keywords | None]] = OrderedDict()

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
        view, keywords = self._version(snapshot)
        rows = view.eligible(task_type, tiers)
        if len(rows):
            vectors = None if self._vectors is None else self._vectors.embed(asked)
            for at, query in enumerate(asked):
                scores = None if keywords is None else self._weighted(keywords.scores(query), rows)
                question = Question(None if vectors is None else vectors[at], self._cosine_weight, scores)
                found[query] = self._find(view, rows, question, k)
        return [list(found[query]) for query in queries]

    def rank(self, queries: Sequence[str], skills: Sequence[Sequence[Skill]], k: int) -> list[list[Hit]]:
        """The best `k` of each query's own few skills, which are in no snapshot and are not kept; by cosine.

        Raises:
            ConfigError: the retriever has no embedder (`keyword`).
        """
        if self._vectors is None:
            raise ConfigError(
                "Skills outside of the bank are ranked by cosine, but retrieval by keyword has no embedder."
            )
        queries = [query[:EMBED_CHARS] for query in queries]
        texts = list(dict.fromkeys([*queries, *(skill_text(skill) for own in skills for skill in own)]))
        vectors = dict(zip(texts, self._vectors.embed(texts).astype(np.float64), strict=True)) if texts else {}
        ranked = []
        for query, own in zip(queries, skills, strict=True):
            hits = [Hit(skill, float((vectors[skill_text(skill)] * vectors[query]).sum())) for skill in own]
            kept = [hit for hit in hits if hit.score >= self._least(hit.skill.tier) and vectors[query].any()]
            ranked.append(sorted(kept, key=lambda hit: (-hit.score, hit.skill.id))[:k])
        return ranked

    @property
    def embedder(self) -> Embedder | None:
        """What makes the vectors; None for `keyword`."""
        return None if self._vectors is None else self._vectors.embedder

    def close(self) -> None:
        """Give back what the index holds open."""
        self._versions.clear()
        if self._vectors is not None:
            self._vectors.index.close()

    def _least(self, tier: Tier) -> float:
        return self._min_score if tier == "task" else self._min_score_of_others

    def _find(self, view: View, rows: Rows, question: Question, k: int) -> list[Hit]:
        if not question.has_content(rows):
            return []
        parts = [(rows, self._min_score)]
        if self._min_score != self._min_score_of_others:  # then a better score may be left out, and a lesser one found
            of_task = view.of_task[rows]
            parts = [(rows[of_task], self._min_score), (rows[~of_task], self._min_score_of_others)]
        found = [hit for part, least in parts if len(part) for hit in self._best(view, part, question, k, least)]
        return sorted(found, key=lambda hit: (-hit.score, hit.skill.id))[:k]

    def _best(self, view: View, rows: Rows, question: Question, k: int, least: float) -> list[Hit]:
        """The first k of these rows."""
        scored = self._candidates(view, rows, question, k) if len(rows) > self._exact_below else None
        if scored is None:
            likely = question.likely(view, rows, k)
            scored = likely, question.scores(view, likely)
        picked, scores = scored
        order = np.lexsort((picked, -scores))[:k]
        if question.vector is None:
            order = order[scores[order] > 0]  # no shared word
        return [Hit(view.skills[picked[at]], float(scores[at])) for at in order if scores[at] >= least]

    def _weighted(self, bm25: Scores, rows: Rows) -> Scores:
        """BM25 as it counts in the score, shape (N,): beside a cosine, the best eligible skill has the whole weight."""
        best = bm25[rows].max() if self._cosine_weight else 1.0
        return self._keyword_weight * bm25 / best if best > 0 else bm25

    def _candidates(self, view: View, rows: Rows, question: Question, k: int) -> tuple[Rows, Scores] | None:
        """Rows among which the first k are, if Chroma's nearest are the nearest, and their scores; None: look at all."""
        if self._vectors is None or question.vector is None:
            return None
        self._vectors.hold(view)
        eligible = np.zeros(len(view.skills), dtype=bool)
        eligible[rows] = True
        n = max(FIRST_CANDIDATES, 4 * k)
        while n <= MOST_CANDIDATES and n < len(rows):
            near = self._vectors.index.nearest(question.vector, n)
            if near is None or len(near) < n:
                return None
            named = np.unique(np.array([row for key, _ in near for row in view.rows_of.get(key, ())], dtype=np.int64))
            outside = self._cosine_weight * near[-1][1]  # what a skill beyond the named ones scores at most
            if question.keyword is not None:
                by_word = rows[np.argpartition(question.keyword[rows], -n)[-n:]]
                outside += question.keyword[by_word].min()
                named = np.union1d(named, by_word)
            picked = named[eligible[named]]
            scores = question.scores(view, picked)
            if len(picked) >= k and np.sort(scores)[-k] > outside + CHROMA_ROUNDING:
                return picked, scores
            n *= 4
        return None

    def _version(self, snapshot: Snapshot) -> tuple[View, _Keywords | None]:
        """What searching this snapshot needs, made once."""
        if id(snapshot) not in self._versions:
            view = View(snapshot)
            if self._vectors is not None:
                self._vectors.fill(view)
            keywords = _Keywords(view.texts) if self._keyword_weight else None
            self._versions[id(snapshot)] = view, keywords  # the view keeps the snapshot alive: its id is not used again
            if len(self._versions) > CACHED_VERSIONS:
                self._versions.popitem(last=False)
        self._versions.move_to_end(id(snapshot))
        return self._versions[id(snapshot)]


class _Keywords:
    """BM25 over a list of texts."""

    def __init__(self, texts: Sequence[str]) -> None:
        try:
            import bm25s
        except ImportError:
            raise MissingDependencyError.for_extra("Keyword retrieval", "skills") from None
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
