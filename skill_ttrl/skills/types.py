"""Episodes as teachers see them, the drafts that teachers write, and bounded, seeded samples of episodes."""

from __future__ import annotations

import sys
from bisect import insort
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from operator import itemgetter
from typing import Generic, Protocol, TypeVar

from skill_ttrl.config import DistillConfig, EvolveConfig
from skill_ttrl.types import Skill, Step, Tier, Trajectory, derive_seed


@dataclass(frozen=True, slots=True)
class Case:
    """One episode as a teacher sees it."""

    task_id: str
    task: str
    """The goal in words; empty where only the observations state it."""
    task_type: str
    """As the bank calls it (`skills.type_names`)."""
    won: bool
    steps: tuple[Step, ...]
    final_obs: str = ""

    def outcomes(self) -> list[tuple[str, str]]:
        """(action, observation that followed) of each step."""
        after = [*(step.observation for step in self.steps[1:]), self.final_obs]
        return [(step.action, seen) for step, seen in zip(self.steps, after, strict=False)]


@dataclass(frozen=True, slots=True)
class Draft:
    """A skill that a teacher proposes: a new one, or a better text for one of the bank."""

    title: str
    text: str
    when_to_apply: str = ""
    tier: Tier = "task"
    task_type: str = ""
    """Empty for any."""
    base: str = ""
    """Id of the skill that it replaces; empty for a new one."""
    evidence: tuple[str, ...] = ()
    """Ids of the tasks it comes from."""


@dataclass(frozen=True, slots=True)
class TeacherResult:
    """Drafts, and what became of the questions behind them."""

    drafts: tuple[Draft, ...] = ()
    notes: tuple[str, ...] = ()
    """Refused or left out entries, each with its reason."""
    requests: int = 0
    """Questions to a language model."""
    failed: int = 0
    """Of these, those without a usable answer."""


class Teacher(Protocol):
    """Learns from episodes what the next ones should know.

    With an attribute `reads_listed = True` it finds the listed actions in the steps of failures (`Step.admissible_actions`), which are left out
    otherwise: they are many.
    """

    def distill(self, cases: Sequence[Case], config: DistillConfig) -> TeacherResult:
        """Skills from won and lost episodes, of all types: general principles, skills by type, mistakes to avoid."""
        ...

    def evolve(self, failures: Sequence[Case], skills: Sequence[Skill], config: EvolveConfig) -> TeacherResult:
        """New and better skills from failures, with the present bank in view, the most important first. Of those that were not
        rejected before, the first `config.max_new_skills` are admitted.
        """
        ...


def goal_of(trajectory: Trajectory) -> str:
    """The goal of an episode in words; empty where only the observations state it."""
    stated = trajectory.task.options.get("question")
    return trajectory.goal or (stated if isinstance(stated, str) else "")


def case_of(trajectory: Trajectory, type_names: Mapping[str, str] | None = None) -> Case:
    """One episode as a teacher sees it; `type_names` maps types of tasks to the bank's names for them."""
    kind = trajectory.task.task_type
    return Case(
        task_id=trajectory.task.id,
        task=goal_of(trajectory),
        task_type=(type_names or {}).get(kind, kind),
        won=trajectory.is_success,
        steps=trajectory.steps,
        final_obs=trajectory.final_obs,
    )


K = TypeVar("K")
T = TypeVar("T")
SOURCE = "distill"
"""`source` of distilled skills, reason of their update and phase of the ledger."""
MOST_CASES = 500
"""Won, and lost, episodes of a type that are looked at."""
OBSERVATION_CHARS = 2000
"""Characters that are stored of each observation."""
NO_TYPE = "(no type)"
"""Name of the type of tasks without one, for messages."""


class SeededSample(Generic[T]):
    """The `size` items of the lowest keys: with derived seeds as keys, an even sample that no order and no interruption changes.

    Args:
        size: most items.
        items: (key, item) of an earlier sample, lowest key first.
    """

    def __init__(self, size: int, items: Iterable[tuple[int, T]] = ()) -> None:
        self.size = size
        self.items = list(items)

    def add(self, key: int, item: T) -> None:
        """Put an item in; one too many goes out, perhaps the same."""
        insort(self.items, (key, item), key=itemgetter(0))
        del self.items[self.size :]


class CaseCollector:
    """Counts episodes by type and samples, of each type, at most `MOST_CASES` won and as many lost ones.

    Args:
        type_names: the bank's names for types of tasks.
        seed: of the draws.
    """

    def __init__(self, type_names: Mapping[str, str], seed: int) -> None:
        self._type_names, self._seed = type_names, seed
        self._samples: dict[tuple[str, str], SeededSample[tuple[int, Case]]] = {}
        self._counts: dict[str, Counter[str]] = defaultdict(Counter)
        self._number = 0
        self.envs: set[str] = set()

    def add(self, trajectory: Trajectory) -> None:
        """Count one more episode, and sample it where it can be learned from."""
        task = trajectory.task
        self._number += 1
        self.envs.add(task.env_id)
        case = case_of(trajectory, self._type_names)
        if trajectory.error is not None or not trajectory.steps:
            self._counts[case.task_type]["failed"] += 1
            return
        outcome = "won" if case.won else "lost"
        self._counts[case.task_type][outcome] += 1
        sample = self._samples.setdefault((case.task_type, outcome), SeededSample(MOST_CASES))
        key = derive_seed(self._seed, SOURCE, task.id, self._number)
        sample.add(key, (self._number, lean(case)))

    def cases(self) -> list[Case]:
        """The sampled episodes, in the order in which they came."""
        sampled = (item for sample in self._samples.values() for _, item in sample.items)
        return [case for _, case in sorted(sampled, key=itemgetter(0))]

    def counts(self) -> dict[str, dict[str, int]]:
        """For each type of task how many episodes were won, lost, and failed with an error."""
        return {
            kind: {name: self._counts[kind][name] for name in ("won", "lost", "failed")}
            for kind in sorted(self._counts)
        }

    def notes(self) -> list[str]:
        """Sentences about the episodes for the user."""
        notes = []
        if len(self.envs) > 1:
            notes.append(
                f"The episodes come from {len(self.envs)} environments ({', '.join(sorted(self.envs))}); general principles and "
                "mistakes mix them. One bank for each is cleaner."
            )
        failed = sum(each["failed"] for each in self._counts.values())
        if failed:
            notes.append(f"{failed} of {self._number} episodes failed with an error or have no step; they are ignored.")
        return notes


def lean(case: Case, *, with_listed: bool = True) -> Case:
    """The case without tokens and with the beginning of long texts; equal texts are stored once.

    Args:
        case: the whole episode.
        with_listed: keep the actions that were listed at each step.
    """
    steps = tuple(
        Step(
            step.observation[:OBSERVATION_CHARS],
            step.action,
            step.reward,
            step.terminated,
            step.truncated,
            admissible_actions=tuple(map(sys.intern, step.admissible_actions)) if with_listed else (),
            action_status=step.action_status,
            parse_error=step.parse_error,
        )
        for step in case.steps
    )
    return replace(case, steps=steps, final_obs=case.final_obs[:OBSERVATION_CHARS])


def grouped(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """The items by their key, both in the order in which they came."""
    found: dict[K, list[T]] = defaultdict(list)
    for item in items:
        found[key(item)].append(item)
    return found


def round_robin(lists: Iterable[Sequence[T]]) -> list[T]:
    """The first of each list in turn, then the second of each, …"""
    nothing = object()
    return [each for row in zip_longest(*lists, fillvalue=nothing) for each in row if each is not nothing]  # type: ignore[misc]
