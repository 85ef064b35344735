"""Inputs and results of mergers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
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


TROUBLE = "A language model that merges gave no usable answer"
"""Begins the warning of it."""


@dataclass(frozen=True, slots=True)
class MergeReport(LLMCallStats):
    """Counts of a merge, and of the requests to language models for it."""

    rollouts: int = 0
    winners: int = 0
    generated: int = 0
    """Skill texts that winners wrote."""
    extracted: int = 0
    """Skill texts that were found in winners' solutions."""
    fused: int = 0
    """Texts of both kinds that said the same as another."""
    added: int = 0
    credited: int = 0
    """Skills of the bank whose use was counted; those that were replaced too are among them."""
    evolved: int = 0
    skipped: tuple[str, ...] = ()
    """Items left out, each with its reason."""

    def counts(self) -> dict[str, int]:
        """Return all counts by name; those of language models only if there were requests."""
        asked = ("requests", "failed", "fallback")
        found = {each.name: getattr(self, each.name) for each in fields(self) if each.name not in ("error", *asked)}
        found["skipped"] = len(self.skipped)
        return found | {name: getattr(self, name) for name in asked if self.requests}

    def trouble(self) -> str | None:
        """Describe the failures of language models in a sentence; None if there were none."""
        if not self.failed and not self.fallback:
            return None
        done = ("its part of the update is left out", "the heuristic does its part")[bool(self.fallback)]
        return f"{TROUBLE} ({self.failed + self.fallback} of {self.requests} requests): {done}. {self.error}"

    def __add__(self, other: MergeReport) -> MergeReport:
        """Counts of both; the error of the first that has one."""
        sums = {each.name: getattr(self, each.name) + getattr(other, each.name) for each in fields(self)}
        return MergeReport(**{**sums, "error": self.error or other.error})
