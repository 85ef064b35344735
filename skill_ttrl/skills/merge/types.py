"""Inputs and results of mergers and extractors."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from skill_ttrl.skills.ops import ParsedOutput
from skill_ttrl.skills.querying import LLMCallStats
from skill_ttrl.skills.snapshot import Snapshot
from skill_ttrl.types import Evolution, SkillOps


@dataclass(frozen=True, slots=True)
class Draft:
    """A skill that winners wrote."""

    text: str
    title: str = ""
    support: tuple[int, ...] = ()
    """Positions of the outputs that wrote it, or one like it."""


@dataclass(frozen=True, slots=True)
class Rewrite:
    """A better text for a skill, from all that were written for it."""

    base: str
    text: str
    support: tuple[int, ...] = ()
    """Positions of the outputs whose words are in it."""


@dataclass(frozen=True, slots=True)
class Merged:
    """The winners' operations as one."""

    new_skills: tuple[Draft, ...] = ()
    """Best supported first."""
    useful_retrieval_ids: tuple[str, ...] = ()
    """Skills that more than one winner was given (or the only winner), most used first."""
    evolved_skills: tuple[Rewrite, ...] = ()
    """At most one for each base."""
    skipped: tuple[str, ...] = ()
    """Items left out, each with its reason."""
    asked: LLMCallStats = field(default_factory=LLMCallStats)

    @property
    def merge_summary(self) -> str:
        """Counts of what was merged, in words."""
        counts = {
            "new skills": len(self.new_skills),
            "useful retrievals": len(self.useful_retrieval_ids),
            "evolved skills": len(self.evolved_skills),
        }
        return ", ".join(f"{count} {name}" for name, count in counts.items() if count) or "no ops"


class Merger(Protocol):
    """Fuses winners' operations. A language model can do it too."""

    def merge(
        self,
        outputs: Sequence[ParsedOutput],
        *,
        retrieved: Sequence[Sequence[str]] = (),
        snapshot: Snapshot | None = None,
    ) -> Merged:
        """Fuse.

        Args:
            outputs: what the winners wrote.
            retrieved: for each output the ids of the skills it was given; may be left out.
            snapshot: the bank they saw, where the texts of the bases are needed.
        """
        ...


@dataclass(frozen=True, slots=True)
class Solved:
    """One problem and its solutions, sorted independently of the order of rollouts."""

    name: str
    """Id of the task."""
    problem: str
    winners: tuple[str, ...]
    """Solutions that won."""
    losers: tuple[str, ...]
    answers: tuple[str, ...] = ()
    """Answers of the winners."""


@dataclass(frozen=True, slots=True)
class Technique:
    """Technique that winners share, as a skill."""

    text: str
    title: str = ""


@dataclass(frozen=True, slots=True)
class Extracted:
    """Techniques found in the solutions of many problems."""

    found: tuple[Technique | None, ...]
    """Technique of each problem; None if there is none, which is a normal result."""
    skipped: tuple[str, ...] = ()
    """Rejected texts of a language model, each with its reason."""
    asked: LLMCallStats = field(default_factory=LLMCallStats)


class Extractor(Protocol):
    """Finds techniques across solutions."""

    def extract(self, problems: Sequence[Solved]) -> Extracted:
        """One technique or None for each problem, in order."""
        ...


def titles(ops: SkillOps) -> tuple[str, ...]:
    """A title for each new skill; empty where there is none."""
    return (*ops.titles, *[""] * len(ops.generate))[: len(ops.generate)]


def select_ops(ops: SkillOps, new: Callable[[str], bool], rewrite: Callable[[Evolution], bool]) -> SkillOps:
    """The operations with those new skills and rewrites alone for which the conditions hold."""
    pairs = [pair for pair in zip(ops.generate, titles(ops), strict=True) if new(pair[0])]
    return replace(
        ops,
        generate=tuple(text for text, _ in pairs),
        titles=tuple(title for _, title in pairs),
        evolve=tuple(filter(rewrite, ops.evolve)),
    )


def rewrites_by_base(outputs: Sequence[ParsedOutput]) -> dict[str, list[tuple[int, str]]]:
    """For each rewritten skill, in the order of ids, who rewrote it and how: the last text of each output."""
    found: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for place, output in enumerate(outputs):
        for base, text in {each.base: each.text for each in output.skill_ops.evolve}.items():
            found[base].append((place, text))
    return dict(sorted(found.items()))
