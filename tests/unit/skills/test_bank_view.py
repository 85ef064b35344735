"""Which skills a prompt shows: the threshold, the floor, and records."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from skill_ttrl.skills.changes import Snapshot
from skill_ttrl.skills.embedders import Vectors
from skill_ttrl.skills.retrieval import BankView, MemoryIndex, Query, Retriever
from skill_ttrl.types import Skill, SkillStats, Tier


class Angles:
    """Of a text that is a cosine, the vector with this cosine to the query."""

    name, dimension = "angles", 2

    def embed(self, texts: Sequence[str]) -> Vectors:
        cosines = np.array([1.0 if text == "query" else float(text) for text in texts])
        return np.stack([cosines, np.sqrt(1 - cosines**2)], axis=1).astype(np.float32)


def skill(name: str, score: float, tier: Tier, uses: int = 0, successes: int = 0) -> Skill:
    return Skill(name, "", str(score), tier=tier, stats=SkillStats(uses=uses, successes=successes))


def shown(skills: Sequence[Skill], k: int = 6, min_score: float | None = 0.0) -> list[str]:
    retriever = Retriever("embedding", Angles(), MemoryIndex(), min_score=min_score)
    (found,) = BankView(Snapshot.of(1, skills), retriever).select_for_prompts([Query("query")], k)
    return [each.id for each in found]


BANK = [
    skill("g1", 0.1, "general"), skill("m1", 0.05, "mistake"), skill("t1", 0.5, "task"), skill("t2", 0.3, "task"),
    skill("g2", -0.2, "general"), skill("t3", -0.1, "task"),
]  # fmt: skip


def test_the_threshold_is_for_task_skills_and_nothing_below_0_is_shown() -> None:
    assert shown(BANK, min_score=0.4) == ["g1", "t1", "m1"]
    assert shown(BANK) == ["g1", "t1", "m1", "t2"]
    assert shown(BANK, min_score=None) == ["g1", "t1", "m1", "g2", "t2", "t3"]
    assert shown(BANK, min_score=-0.15) == ["g1", "t1", "m1", "t2", "t3"]


def test_a_skill_that_serves_badly_gives_its_place_to_one_that_serves_better() -> None:
    often = skill("often", 0.30, "general", uses=299, successes=60)
    useful = skill("useful", 0.25, "general", uses=6, successes=6)
    assert shown([skill("often", 0.30, "general"), skill("useful", 0.25, "general")], k=1) == ["often"]
    assert shown([often, useful], k=1) == ["useful"]
