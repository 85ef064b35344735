"""Chooses a teacher by name.

`heuristic` counts what winners did and losers did not; `openai` asks a language model. A custom one is named
`module:attribute`: any callable without arguments that returns a `Teacher`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from skill_ttrl.config import DistillConfig, EvolveConfig
from skill_ttrl.errors import ConfigError
from skill_ttrl.registry import Registry
from skill_ttrl.skills.querying import OPENAI, LLMEndpoints
from skill_ttrl.skills.teachers.failures import evolved_by_counting
from skill_ttrl.skills.teachers.llm import LLMTeacher
from skill_ttrl.skills.teachers.types import Case, Teacher, TeacherResult
from skill_ttrl.skills.teachers.wins import distilled
from skill_ttrl.types import Skill

TEACHERS: Registry[Callable[..., Teacher]] = Registry("teacher")


@TEACHERS.register("heuristic")
class HeuristicTeacher:
    """Counts what winners did and losers did not; needs no language model."""

    def distill(self, cases: Sequence[Case], config: DistillConfig) -> TeacherResult:
        """See `Teacher.distill`."""
        return distilled(cases, config)

    def evolve(self, failures: Sequence[Case], skills: Sequence[Skill], config: EvolveConfig) -> TeacherResult:
        """See `Teacher.evolve`."""
        return evolved_by_counting(failures, skills, config)


@TEACHERS.register(OPENAI)
def _openai(models: LLMEndpoints) -> Teacher:
    return LLMTeacher(models.asking("teacher"))


def make_teacher(name: str = "heuristic", *, models: LLMEndpoints | None = None) -> Teacher:
    """The teacher called `name`; `models` holds the endpoint that `openai` asks.

    Raises:
        ConfigError: the name is unknown, the teacher cannot be made, or a custom factory returns no teacher.
    """
    factory = TEACHERS.get(name)
    try:
        made = factory(models or LLMEndpoints()) if name == OPENAI else factory()
    except TypeError as error:
        raise ConfigError(f"Teacher {name!r} cannot be made without arguments: {error}.") from None
    missing = [each for each in ("distill", "evolve") if not callable(getattr(made, each, None))]
    if missing:
        raise ConfigError(f"{name!r} gave a {type(made).__name__} without {' and '.join(missing)}: it is no teacher.")
    return made
