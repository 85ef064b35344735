"""Plain data and the protocol of teachers, which write skills from episodes. `teachers.make` chooses one by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from skill_ttrl.config import DistillConfig, EvolveConfig
from skill_ttrl.types import Skill, Step, Tier, Trajectory


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
