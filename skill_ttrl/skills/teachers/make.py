"""The built-in teachers, chosen by name.

`heuristic` counts what winners did and losers did not; `analogy` guesses from failures what helps with a type of task that the bank has no skill
for; `openai` asks a language model. A custom one is named `module:attribute`: any callable without arguments that returns a `Teacher`.
"""

from __future__ import annotations

from collections.abc import Callable

from skill_ttrl.errors import ConfigError
from skill_ttrl.registry import Registry
from skill_ttrl.skills.querying import OPENAI, LLMEndpoints
from skill_ttrl.skills.teachers.asking import LLMTeacher
from skill_ttrl.skills.teachers.counting import distilled
from skill_ttrl.skills.teachers.failures import evolved_by_analogy, evolved_by_counting
from skill_ttrl.skills.types import Teacher

TEACHERS: Registry[Callable[..., Teacher]] = Registry("teacher")


@TEACHERS.register("heuristic")
class HeuristicTeacher:
    """Counts what winners did and losers did not; needs no language model."""

    distill = staticmethod(distilled)
    evolve = staticmethod(evolved_by_counting)


@TEACHERS.register("analogy")
class AnalogyTeacher:
    """Counts as `HeuristicTeacher` does in won episodes; failures of a type without a skill give guesses, for a gate to decide on."""

    reads_listed = True
    distill = staticmethod(distilled)
    evolve = staticmethod(evolved_by_analogy)


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
        raise ConfigError(
            f"{name!r} returned an object of type {type(made).__name__} without {' and '.join(missing)}; a teacher needs both."
        )
    return made
