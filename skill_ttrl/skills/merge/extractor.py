"""Extractors: who writes the skill where no winner of a group did.

`HeuristicExtractor` counts what solutions share (`extract`); `openai` asks a language model (`extract_llm`). One of your own
is called by name as `module:attribute`: anything that can be called without arguments and gives an `Extractor`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from skill_ttrl.errors import ConfigError
from skill_ttrl.registry import Registry
from skill_ttrl.skills.merge.extract import technique
from skill_ttrl.skills.querying import OPENAI, LLMCallStats, LLMEndpoints


@dataclass(frozen=True, slots=True)
class Solved:
    """One problem and how it was tried; the solutions in an order that theirs does not change."""

    name: str
    """Id of the task."""
    problem: str
    winners: tuple[str, ...]
    """Solutions that won."""
    losers: tuple[str, ...]
    answers: tuple[str, ...] = ()
    """What the winners answered."""


@dataclass(frozen=True, slots=True)
class Technique:
    """What winners have in common, as a skill."""

    text: str
    title: str = ""


@dataclass(frozen=True, slots=True)
class Extracted:
    """What was found in the solutions of many problems."""

    found: tuple[Technique | None, ...]
    """For each problem; None where there is nothing, which is a normal outcome."""
    skipped: tuple[str, ...] = ()
    """What a language model wrote that is refused, each with its reason."""
    asked: LLMCallStats = field(default_factory=LLMCallStats)


class Extractor(Protocol):
    """Finds techniques across solutions."""

    def extract(self, problems: Sequence[Solved]) -> Extracted:
        """One technique or None for each problem, in order."""
        ...


class HeuristicExtractor:
    """Counts sentences and runs of words that most winners and few losers have; needs no language model."""

    def extract(self, problems: Sequence[Solved]) -> Extracted:
        """See `Extractor.extract`."""
        return Extracted(tuple(map(shared, problems)))


def shared(solved: Solved) -> Technique | None:
    """The technique of one problem by counting."""
    text = technique(solved.problem, solved.winners, solved.losers)
    return None if text is None else Technique(text)


EXTRACTORS: Registry[Callable[..., Extractor]] = Registry("extractor")
EXTRACTORS.register("heuristic")(HeuristicExtractor)


@EXTRACTORS.register(OPENAI)
def _openai(models: LLMEndpoints) -> Extractor:
    from skill_ttrl.skills.merge.extract_llm import LLMExtractor

    return LLMExtractor(models.asking("teacher"))


def make_extractor(name: str = "heuristic", *, models: LLMEndpoints | None = None) -> Extractor:
    """The extractor called `name`; `models` says whom `openai` asks.

    Raises:
        ConfigError: there is none of that name, it cannot be made, or what a user's factory gives has no `extract`.
    """
    factory = EXTRACTORS.get(name)
    try:
        made = factory(models or LLMEndpoints()) if name == OPENAI else factory()
    except TypeError as error:
        raise ConfigError(f"Extractor {name!r} cannot be made without arguments: {error}.") from None
    if not callable(getattr(made, "extract", None)):
        raise ConfigError(f"{name!r} gave a {type(made).__name__} without extract(problems).")
    return made
