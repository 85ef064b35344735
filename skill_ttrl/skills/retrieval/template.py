"""SkillRL's own way of choosing skills for a prompt: by type of task, without a query (`skills.retrieval: template`).

    general    up to `k` of them
    task       all that are for the task's type, or for any
    mistakes   the first five

Within a tier the skills stand in the order of the bank, that of their ids, until their records differ: then those that served
better come first. An evolved skill is tried like any other and keeps its place only as long as it serves as well; in SkillRL's
code all evolved ones come first, which leaves the others no place after two rounds.
"""

from __future__ import annotations

from collections.abc import Iterable

from skill_ttrl.skills.snapshot import Snapshot
from skill_ttrl.types import Skill

MISTAKES = 5
"""Most mistakes in a prompt (SkillRL's code)."""


def by_template(snapshot: Snapshot, task_type: str, k: int) -> list[list[Skill]]:
    """The skills of a prompt by tier: general, task, mistakes; each tier the best record first, ties in the order of the bank.

    Args:
        snapshot: the frozen bank.
        task_type: what the task is, in the bank's words; empty for any.
        k: most general skills.
    """
    fitting = [skill for skill in snapshot if not task_type or skill.task_type in ("", task_type)]
    general = [skill for skill in snapshot if skill.tier == "general"]
    task = [skill for skill in fitting if skill.tier == "task"]
    mistakes = [skill for skill in fitting if skill.tier == "mistake"]
    return [most_useful(general)[:k], most_useful(task), most_useful(mistakes)[:MISTAKES]]


def most_useful(skills: Iterable[Skill]) -> list[Skill]:
    """Order skills by success per use, best first, one success and one failure added, so that an unused skill counts as 1/2 (as in eviction)."""
    return sorted(
        skills, key=lambda skill: -(skill.stats.successes + 1) / (skill.stats.uses + 2)
    )  # stable: as in the bank
