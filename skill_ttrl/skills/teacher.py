"""Teachers: who writes skills from whole episodes, and better ones from failures.

`heuristic` counts what winners did and losers did not; `openai` asks a language model. One of your own is called by name as
`module:attribute`: anything that can be called without arguments and gives a `Teacher`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from skill_ttrl.config import DistillConfig, EvolveConfig
from skill_ttrl.registry import Registry
from skill_ttrl.types import Skill, Step, Tier, Trajectory


@dataclass(frozen=True, slots=True)
class Case:
    """One episode as a teacher looks at it."""

    task_id: str
    task: str
    """What was to be done, in words; empty where only the observations say it."""
    task_type: str
    """As the bank calls it (`skills.type_names`)."""
    won: bool
    steps: tuple[Step, ...]
    last_observation: str = ""


@dataclass(frozen=True, slots=True)
class Draft:
    """What a teacher wants in the bank: a new skill, or a better text for one that is there."""

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
class Lesson:
    """What a teacher found."""

    drafts: tuple[Draft, ...] = ()
    notes: tuple[str, ...] = ()
    """What was refused or left out, each with its reason."""
    requests: int = 0
    """Questions to a language model."""
    failed: int = 0
    """Of these, those without a usable answer."""


class Teacher(Protocol):
    """Learns from episodes what to tell the next ones."""

    def distill(self, cases: Sequence[Case], config: DistillConfig) -> Lesson:
        """Skills from won and lost episodes, of all types: general principles, skills by type, mistakes to avoid."""
        ...

    def evolve(self, failures: Sequence[Case], skills: Sequence[Skill], config: EvolveConfig) -> Lesson:
        """New and better skills from failures, with the present bank in view; at most `config.max_new_skills`."""
        ...


TEACHERS: Registry[Callable[..., Teacher]] = Registry("teacher")


def case_of(trajectory: Trajectory, type_names: Mapping[str, str] | None = None) -> Case:
    """One episode as a teacher looks at it; `type_names` says what the bank calls the types of tasks."""
    kind = trajectory.task.task_type
    stated = trajectory.task.options.get("question")
    return Case(
        task_id=trajectory.task.id,
        task=trajectory.goal or (stated if isinstance(stated, str) else ""),
        task_type=(type_names or {}).get(kind, kind),
        won=trajectory.succeeded,
        steps=trajectory.steps,
        last_observation=trajectory.last_observation,
    )


def cases_of(trajectories: Iterable[Trajectory], type_names: Mapping[str, str] | None = None) -> list[Case]:
    """Those of the episodes in which something was done and nothing failed."""
    return [case_of(each, type_names) for each in trajectories if each.steps and each.error is None]
