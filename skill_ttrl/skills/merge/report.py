"""Report of a merge, in counts."""

from __future__ import annotations

from dataclasses import dataclass, fields

TROUBLE = "A language model that merges or extracts gave no usable answer"
"""Begins the warning of it."""


@dataclass(frozen=True, slots=True)
class MergeReport:
    """Counts of a merge."""

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
    requests: int = 0
    """Number of requests to language models."""
    failed: int = 0
    """Requests without a usable answer, whose part of the update was left out."""
    fallback: int = 0
    """Requests without a usable answer, whose part of the update came from the heuristic."""
    error: str = ""
    """Message of the first request without a usable answer."""

    def counts(self) -> dict[str, int]:
        """Return all counts by name; those of language models only if there were requests."""
        asked = ("requests", "failed", "fallback")
        names = [each.name for each in fields(self) if each.name not in ("skipped", "error", *asked)]
        found = {name: getattr(self, name) for name in names} | {"skipped": len(self.skipped)}
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
