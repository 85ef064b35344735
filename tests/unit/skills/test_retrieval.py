"""Retrieval against a naive brute force: exact scores, ties by id, filters, thresholds; and which skills a prompt shows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skill_ttrl.errors import ExtensionError
from skill_ttrl.skills.changes import Snapshot
from skill_ttrl.skills.embedders import EMBED_CHARS, HashEmbedder, Vectors, words_of
from skill_ttrl.skills.files import read_file
from skill_ttrl.skills.log import BankSettings, Mode
from skill_ttrl.skills.retrieval import (
    BankView,
    Hit,
    MemoryIndex,
    Query,
    Retriever,
    by_template,
    make_retriever,
    skill_text,
)
from skill_ttrl.types import Skill, SkillStats, Tier

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


class Angles:
    """Of a text that is a cosine, the vector with this cosine to the query."""

    name, dimension = "angles", 2

    def embed(self, texts: Sequence[str]) -> Vectors:
        cosines = np.array([1.0 if text == "query" else float(text) for text in texts])
        return np.stack([cosines, np.sqrt(1 - cosines**2)], axis=1).astype(np.float32)


def test_an_error_in_an_embedder_of_one_s_own_names_it() -> None:
    with pytest.raises(ExtensionError, match=r"The embedder 'angles' failed: ValueError: could not convert"):
        shown([Skill("s", "", "no cosine")])


def scored(name: str, score: float, tier: Tier, uses: int = 0, successes: int = 0) -> Skill:
    return Skill(name, "", str(score), tier=tier, stats=SkillStats(uses=uses, successes=successes))


def shown(skills: Sequence[Skill], k: int = 6, min_score: float | None = 0.0) -> list[str]:
    retriever = Retriever("embedding", Angles(), MemoryIndex(), min_score=min_score)
    (found,) = BankView(Snapshot.of(1, skills), retriever).select_for_prompts([Query("query")], k)
    return [each.id for each in found]


SCORED = [
    scored("g1", 0.1, "general"), scored("m1", 0.05, "mistake"), scored("t1", 0.5, "task"), scored("t2", 0.3, "task"),
    scored("g2", -0.2, "general"), scored("t3", -0.1, "task"),
]  # fmt: skip


def test_the_threshold_is_for_task_skills_and_nothing_below_0_is_shown() -> None:
    assert shown(SCORED, min_score=0.4) == ["g1", "t1", "m1"]
    assert shown(SCORED) == ["g1", "t1", "m1", "t2"]
    assert shown(SCORED, min_score=None) == ["g1", "t1", "m1", "g2", "t2", "t3"]
    assert shown(SCORED, min_score=-0.15) == ["g1", "t1", "m1", "t2", "t3"]


def test_a_skill_that_serves_badly_gives_its_place_to_one_that_serves_better() -> None:
    often = scored("often", 0.30, "general", uses=299, successes=60)
    useful = scored("useful", 0.25, "general", uses=6, successes=6)
    assert shown([scored("often", 0.30, "general"), scored("useful", 0.25, "general")], k=1) == ["often"]
    assert shown([often, useful], k=1) == ["useful"]


def general(name: str, uses: int = 0, successes: int = 0, source: str = "import") -> Skill:
    return Skill(name, name, f"advice {name}", tier="general", source=source, stats=SkillStats(uses, successes))


def chosen(skills: Sequence[Skill], k: int = 6, kind: str = "clean") -> list[str]:
    access = BankView(Snapshot.of(1, skills), Retriever("template"))
    (found,) = access.select_for_prompts([Query("put a clean mug away", kind)], k)
    return [skill.id for skill in found]


def test_all_of_the_type_some_general_ones_and_five_mistakes_in_the_order_of_the_bank() -> None:
    skills = [general(f"gen_{number:03d}") for number in range(12)]
    skills += [Skill(f"cle_{number:03d}", "t", f"clean {number}", task_type="clean") for number in range(7)]
    skills += [Skill(f"hea_{number:03d}", "t", f"heat {number}", task_type="heat") for number in range(7)]
    skills += [Skill(f"err_{number:03d}", "t", f"avoid {number}", tier="mistake") for number in range(9)]
    columns = by_template(Snapshot.of(1, skills), "clean", 6)
    assert [[skill.id for skill in column] for column in columns] == [
        [f"gen_{number:03d}" for number in range(6)],
        [f"cle_{number:03d}" for number in range(7)],
        [f"err_{number:03d}" for number in range(5)],
    ]
    found = chosen(skills)
    assert len(found) == 18 and found[:4] == ["gen_000", "cle_000", "err_000", "gen_001"]
    assert chosen(skills, k=0) == []


def test_a_published_bank_s_prompt_is_what_skillrl_s_is(skillrl_banks: Path) -> None:
    skills = read_file(skillrl_banks / "alfworld_skills.json").skills
    columns = by_template(Snapshot.of(1, skills), "clean", 6)
    assert [len(column) for column in columns] == [6, 6, 5]
    assert all(skill.task_type == "clean" for skill in columns[1])


def test_an_evolved_skill_is_tried_once_and_then_stands_by_its_record() -> None:
    statics = [general(f"gen_{number}", 100, 60) for number in range(6)]
    fresh = general("sk-new", source="evolve")
    assert "sk-new" not in chosen([*statics, fresh]), "six that help in 60 % of their uses keep their places"
    weak = [*statics[:5], general("gen_5", 100, 20)]
    assert chosen([*weak, fresh])[-1] == "sk-new", "it is tried in the place of one that helps less"
    tried = replace(fresh, stats=SkillStats(100, 5))
    assert "sk-new" not in chosen([*weak, tried]) and "gen_5" in chosen([*weak, tried])
    proven = replace(fresh, stats=SkillStats(100, 90))
    assert chosen([*weak, proven])[0] == "sk-new"
