"""One gate for every change of what a policy reads: a skill bank or a document, before and after, on held-out training tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from skill_ttrl.optimize.gating.paired import GateDecision, PairedRule, certain, decide
from skill_ttrl.types import derive_seed

V_contra = TypeVar("V_contra", contravariant=True)
T_contra = TypeVar("T_contra", contravariant=True)
V = TypeVar("V")
T = TypeVar("T")

CHUNK = 16
"""Tasks that are rolled out before the gate looks whether the decision is certain."""


class ScoreFn(Protocol[V_contra, T_contra]):
    """Rolls out tasks with one version and scores them."""

    def __call__(self, version: V_contra, tasks: Sequence[T_contra], *, seed: int) -> Sequence[float | None]:
        """One mean score in [0, 1] a task, in order; None where none of its rollouts could be scored."""
        ...


@dataclass(frozen=True, slots=True)
class GateOutcome:
    """A decision and the scores that it was made from."""

    decision: GateDecision
    before: tuple[float | None, ...]
    """Score of each task that was rolled out, in order."""
    after: tuple[float | None, ...]
    tasks: int
    """Tasks there were; more than were rolled out where the decision was certain earlier."""

    @property
    def failed(self) -> int:
        """Tasks without a score on one side: they count as ties."""
        return sum(None in pair for pair in zip(self.before, self.after, strict=True))


def gate_change(
    before: V,
    after: V,
    score: ScoreFn[V, T],
    tasks: Sequence[T],
    rule: PairedRule,
    *,
    seed: int,
    early_stop: bool = True,
) -> GateOutcome:
    """Score both versions on the same tasks with the same seeds, and decide.

    A task that could not be scored on one side counts as a tie.

    Args:
        before: the version in use.
        after: the version that would take its place.
        score: rolls out.
        tasks: held out from training, in a fixed order.
        rule: when to accept.
        seed: of the rollouts and of the test.
        early_stop: look after each `CHUNK` tasks, and stop once the decision is certain. It is the same decision.
    """
    scores: tuple[list[float | None], list[float | None]] = ([], [])
    size = CHUNK if early_stop else max(1, len(tasks))
    decision = decide([], [], rule)
    for start in range(0, len(tasks), size):
        part, number = tasks[start : start + size], derive_seed(seed, "gate", start)
        for version, found in zip((before, after), scores, strict=True):
            found += score(version, part, seed=number)
        found_so_far = _tied(*scores)
        remaining = len(tasks) - start - len(part)
        sure = certain(*found_so_far, remaining, rule, seed=seed)
        if sure is not None:
            decision = sure
            break
    return GateOutcome(decision, tuple(scores[0]), tuple(scores[1]), len(tasks))


def _tied(before: Sequence[float | None], after: Sequence[float | None]) -> tuple[list[float], list[float]]:
    """The scores, with a tie at 0 where one is missing."""
    pairs = [
        (0.0, 0.0) if one is None or other is None else (one, other) for one, other in zip(before, after, strict=True)
    ]
    return [one for one, _ in pairs], [other for _, other in pairs]
