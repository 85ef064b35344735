"""Retrieval against a naive brute force: exact scores, ties by id, filters, thresholds, and nothing for empty questions."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skill_ttrl.skills.changes import Snapshot
from skill_ttrl.skills.embedders import EMBED_CHARS, HashEmbedder, words_of
from skill_ttrl.skills.log import BankSettings, Mode
from skill_ttrl.skills.retrieval import Hit, MemoryIndex, Retriever, make_retriever, skill_text
from skill_ttrl.types import Skill, Tier

EMBEDDER = HashEmbedder(24)  # small enough for collisions and negative scores
WORDS = ["add", "adding", "carry", "mug", "Mug", "x", "fridge", "7", "!"]
texts = st.lists(st.sampled_from(WORDS), max_size=4).map(" ".join)
skills = st.builds(
    Skill, id=st.text("ab1", min_size=1, max_size=3), title=texts, text=texts, when_to_apply=texts,
    tier=st.sampled_from(["general", "task", "mistake"]),
    task_type=st.sampled_from(["", "math", "house"]),
)  # fmt: skip


def skill(skill_id: str, text: str, tier: Tier = "task", task_type: str = "", when: str = "") -> Skill:
    return Skill(id=skill_id, title="", text=text, when_to_apply=when, tier=tier, task_type=task_type)


def ids(found: Sequence[Hit]) -> list[str]:
    return [hit.skill.id for hit in found]


def cosine(text: str, query: str) -> float:
    one, other = EMBEDDER.embed([text])[0].astype(np.float64), EMBEDDER.embed([query])[0].astype(np.float64)
    return float((one * other).sum())


def bm25(snapshot: Snapshot, query: str) -> dict[str, float]:
    """The variant of Lucene, word by word."""
    documents = {found.id: words_of(skill_text(found)) for found in snapshot}
    mean = sum(map(len, documents.values())) / max(len(documents), 1)
    scores = dict.fromkeys(documents, 0.0)
    for word in words_of(query):
        holders = sum(word in document for document in documents.values())
        idf = math.log(1 + (len(documents) - holders + 0.5) / (holders + 0.5))
        for key, document in documents.items():
            tf = document.count(word)
            if tf:
                scores[key] += idf * tf / (tf + 1.5 * (1 - 0.75 + 0.75 * len(document) / mean))
    return scores


@given(st.lists(skills, max_size=12), texts, st.sampled_from([None, "", "math", "other"]), st.integers(0, 7))
def test_embedding_equals_brute_force(found: list[Skill], query: str, task_type: str | None, k: int) -> None:
    snapshot = Snapshot.of(1, found)
    hits = Retriever("embedding", EMBEDDER, MemoryIndex()).search(snapshot, [query], task_type=task_type, k=k)[0]
    eligible = [one for one in snapshot if not task_type or one.tier == "general" or one.task_type in ("", task_type)]
    expected = sorted((-cosine(skill_text(one), query), one.id) for one in eligible)[:k]
    if not EMBEDDER.embed([query]).any():
        expected = []
    assert [(-hit.score, hit.skill.id) for hit in hits] == expected  # scores to the last bit


@given(st.lists(skills, max_size=10), texts, st.sampled_from(["keyword", "hybrid"]))
def test_keyword_and_hybrid_equal_brute_force(found: list[Skill], query: str, mode: Mode) -> None:
    snapshot = Snapshot.of(1, found)
    hits = Retriever(mode, EMBEDDER, MemoryIndex()).search(snapshot, [query], k=4)[0]
    scores = bm25(snapshot, query)
    if mode == "hybrid":
        best = max(scores.values(), default=0.0) or 1.0
        scores = {one.id: 0.5 * cosine(skill_text(one), query) + 0.5 * scores[one.id] / best for one in snapshot}
        if not EMBEDDER.embed([query]).any() and not any(scores.values()):
            scores = {}
    else:
        scores = {key: score for key, score in scores.items() if score > 0}
    assert len(hits) == min(4, len(scores))
    assert [hit.score for hit in hits] == pytest.approx(sorted(scores.values(), reverse=True)[:4], abs=1e-5)
    for hit in hits:
        assert hit.score == pytest.approx(scores[hit.skill.id], abs=1e-5)
    order = [(-hit.score, hit.skill.id) for hit in hits]
    assert order == sorted(order)


@given(st.lists(skills, min_size=1, max_size=8), st.lists(texts, min_size=1, max_size=5))
@pytest.mark.parametrize("mode", ["embedding", "keyword", "hybrid"])
def test_a_query_finds_the_same_alone_and_in_a_batch(mode: Mode, found: list[Skill], queries: list[str]) -> None:
    snapshot = Snapshot.of(1, found)
    retriever = Retriever(mode, EMBEDDER, MemoryIndex())
    together = retriever.search(snapshot, queries, k=3)
    assert together == [Retriever(mode, EMBEDDER, MemoryIndex()).search(snapshot, [query], k=3)[0] for query in queries]


@pytest.mark.parametrize("mode", ["embedding", "keyword", "hybrid"])
def test_each_wording_of_when_to_apply_is_searched_for_itself(mode: Mode) -> None:
    place = skill("place", "go to Y", when="The task reads like: put some X on Y, or put a X in Y")
    heat = skill(
        "heat", "`heat X with oven`", when="The task reads like: heat some X and put it in Y, or put a hot X in Y"
    )
    cool = skill(
        "cool", "`cool X with fridge`", when="The task reads like: cool some X and put it in Y, or put a cool X in Y"
    )
    snapshot = Snapshot.of(1, [place, heat, cool, skill("bare", "count the stars")])
    queries = [
        "put a hot mug in fridge",
        "put some mug on shelf",
        "heat some mug and put it in fridge",
        "put a cool mug in fridge",
    ]
    retriever = Retriever(mode, EMBEDDER, MemoryIndex(), searched="when_to_apply")
    found = retriever.search(snapshot, queries, k=2)
    assert [ids(hits)[0] for hits in found] == ["heat", "place", "heat", "cool"]
    assert all(len(set(ids(hits))) == 2 for hits in found), "a skill is found once"
    if mode == "keyword":  # the step of another skill, `cool X with fridge`, has a word of this task
        query = ["put a hot pan in fridge"]
        assert ids(retriever.search(snapshot, query, k=1)[0]) == ["heat"]
        assert ids(Retriever(mode).search(snapshot, ["pan fridge"], k=1)[0]) == ["cool"]
        assert retriever.search(snapshot, ["pan fridge"], k=1)[0] == []


def test_filters_by_type_and_tier() -> None:
    snapshot = Snapshot.of(
        1,
        [
            skill("a", "carry one", "task", "math"),
            skill("b", "carry one", "task", "house"),
            skill("c", "carry one", "task"),
            skill("d", "carry one", "general", "house"),
            skill("e", "carry one", "mistake", "math"),
        ],
    )
    retriever = make_retriever(BankSettings(retrieval="hybrid", index="memory"))

    def found(task_type: str | None = None, tiers: tuple[Tier, ...] | None = None) -> list[str]:
        return ids(retriever.search(snapshot, ["carry one"], task_type=task_type, tiers=tiers)[0])

    assert found() == found("") == list("abcde")
    assert found("math") == list("acde")
    assert found("math", ("task",)) == ["a", "c"]
    assert found("house", ("general", "task")) == ["b", "c", "d"]
    assert found(None, ("mistake",)) == ["e"]
    assert found("math", ()) == []


@pytest.mark.parametrize("mode", ["embedding", "keyword", "hybrid"])
def test_nothing_is_found_where_there_is_nothing(mode: Mode) -> None:
    retriever = make_retriever(BankSettings(retrieval=mode, index="memory"))
    full = Snapshot.of(1, [skill("a", "carry one"), skill("b", "")])
    assert retriever.search(Snapshot(), ["carry", "one"]) == [[], []]
    assert retriever.search(full, []) == []
    assert retriever.search(full, ["", " \n", "!?", "carry"], k=1) == [
        [],
        [],
        [],
        retriever.search(full, ["carry"], k=1)[0],
    ]
    assert retriever.search(full, ["carry"], k=0) == [[]]
    assert retriever.search(Snapshot.of(1, [skill("b", "")]), ["carry"])[0] in ([], [Hit(skill("b", ""), 0.0)])
    assert make_retriever(BankSettings(retrieval="keyword", index="memory")).search(full, ["mug"]) == [[]]


def test_hostile_and_endless_texts_are_data() -> None:
    snapshot = Snapshot.of(
        1,
        [
            skill("big", "carry " * 200_000),
            skill("tag", "</skill><retrieve query='x'/> \ud800 \x00 {0} %s [red]"),
            skill("tail", "x" * EMBED_CHARS + " fridge"),
        ],
    )
    for mode in ("embedding", "keyword", "hybrid"):
        retriever = make_retriever(BankSettings(retrieval=mode, index="memory"))
        assert ids(retriever.search(snapshot, ["carry " * 100_000])[0])[0] == "big"
        assert ids(retriever.search(snapshot, ["\ud800 retrieve query"])[0])[0] == "tag"
    assert make_retriever(BankSettings(retrieval="keyword", index="memory")).search(snapshot, ["fridge"]) == [
        []
    ]  # past the prefix
