"""View of a skill bank for the rollouts of one step: a frozen version and its retriever."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from skill_ttrl.skills.snapshot import Snapshot
from skill_ttrl.types import Skill, Tier

if TYPE_CHECKING:
    from skill_ttrl.skills.retrieval.retriever import Hit, Retriever

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
        found = by_type(self.retriever, self.snapshot, queries, None, k)
        if any(query.notes for query in queries):
            own = self.retriever.rank([query.text for query in queries], [query.notes for query in queries], k)
            found = [_together(*pair, k) for pair in zip(found, own, strict=True)]
        return [tuple(hit.skill for hit in hits) for hits in found]

    def select_for_prompts(self, queries: Sequence[Query], k: int) -> list[tuple[Skill, ...]]:
        """At most `k` skills for each prompt, taken from the tiers in turn: the best general one, the best for the task,
        the best warning, then the second of each. Within a tier, those of the highest scores are ordered by score times record
        (`lift`). Under `template` they are chosen by type of task (`by_template`).
        """
        if k == 0:
            return [()] * len(queries)
        if self.retriever.mode == "template":
            kinds = {query.task_type: by_template(self.snapshot, query.task_type, k) for query in queries}
            return [tuple(round_robin(kinds[query.task_type], len(self.snapshot))) for query in queries]
        tiers = [by_type(self.retriever, self.snapshot, queries, tier, POOL * k) for tier in TIERS]
        success = mean_success(self.snapshot)
        columns = ([_by_record(hits[place], success) for hits in tiers] for place in range(len(queries)))
        return [tuple(round_robin(each, k)) for each in columns]


def mean_success(snapshot: Snapshot) -> float | None:
    """Success per use over all skills, in [0, 1]; None where nothing was used yet, or never with success."""
    uses = sum(skill.stats.uses for skill in snapshot)
    successes = sum(skill.stats.successes for skill in snapshot)
    return successes / uses if successes else None


def lift(skill: Skill, success: float | None) -> float:
    """How much better than the mean `success` of its bank a skill serves, with `PRIOR_USES` uses of that mean added; 1 if unused.

    Scores of general skills hardly differ in what they say of a task: without the record, the one that shares the most words
    fills nearly all prompts, however it serves.
    """
    if success is None:
        return 1.0
    stats = skill.stats
    return (stats.successes / success + PRIOR_USES) / (stats.uses + PRIOR_USES)


def _by_record(hits: Sequence[Hit], success: float | None) -> list[Skill]:
    """Best first; equal ones stay in their order. A score below 0 stays as it is: a good record must not make it worse."""
    weighed = [hit.score * lift(hit.skill, success) if hit.score > 0 else hit.score for hit in hits]
    order = sorted(range(len(hits)), key=lambda place: -weighed[place])
    return [hits[place].skill for place in order]


def _together(found: Sequence[Hit], own: Sequence[Hit], k: int) -> list[Hit]:
    """Return the best of the bank and of a rollout's own notes; a note that is in the bank by now counts once."""
    by_id = {hit.skill.id: hit for hit in (*own, *found)}
    return sorted(by_id.values(), key=lambda hit: (-hit.score, hit.skill.id))[:k]


def by_type(
    retriever: Retriever, snapshot: Snapshot, queries: Sequence[Query], tier: Tier | None, k: int
) -> list[list[Hit]]:
    """Hits for each query in order; queries of one task type are searched together."""
    found: list[list[Hit]] = [[] for _ in queries]
    for task_type in dict.fromkeys(query.task_type for query in queries):
        places = [place for place, query in enumerate(queries) if query.task_type == task_type]
        texts = [queries[place].text for place in places]
        tiers = None if tier is None else (tier,)
        answers = retriever.search(snapshot, texts, task_type=task_type or None, tiers=tiers, k=k)
        for place, hits in zip(places, answers, strict=True):
            found[place] = hits
    return found


def round_robin(columns: Sequence[Sequence[Skill]], k: int) -> list[Skill]:
    """The first of each column, then the second of each, and so on, `k` in all."""
    longest = max((len(column) for column in columns), default=0)
    ordered = [column[row] for row in range(longest) for column in columns if row < len(column)]
    return ordered[:k]


def by_template(snapshot: Snapshot, task_type: str, k: int) -> list[list[Skill]]:
    """SkillRL's own way of choosing skills for a prompt, without a query: `k` general ones, all for the task's type, five mistakes.

    Each tier is ordered by record, best first, ties in the order of the bank. An evolved skill keeps its place only as long as it
    serves as well; in SkillRL's code all evolved ones come first, which leaves the others no place after two rounds.

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
