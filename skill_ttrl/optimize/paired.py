"""Paired tests on held-out tasks: does a change help, or at least not harm? And the gate for every change of what a policy reads.

A score is the mean of a task's rollouts, in [0, 1]; before and after are the same tasks in the same order. Pure functions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from skill_ttrl.statistics import Interval, paired_difference, paired_score_p_value, sign_flip_p_value
from skill_ttrl.types import derive_seed

RuleKind = Literal["better", "not_worse"]
_CLOSE = 1e-9


@dataclass(frozen=True, slots=True)
class PairedRule:
    """When a change is accepted.

    `better`: the mean difference is at least `min_effect`, and the one-sided sign-flip test against "no better" rejects at
    `alpha`. `not_worse`: the one-sided score test against "worse by `min_effect` or more" rejects at `alpha`, so that the
    interval's lower end lies above `-min_effect`. The config's gates bound the numbers.
    """

    kind: RuleKind = "better"
    min_effect: float = 0.0
    """Of the mean score, in [0, 1): the least gain that counts, or for `not_worse` the loss that is too much."""
    alpha: float = 0.05
    """One-sided error: how often, at most, a change is accepted that has no gain (`better`), or loses `min_effect` (`not_worse`)."""


@dataclass(frozen=True, slots=True)
class GateDecision:
    """Outcome of a gate."""

    accept: bool
    difference: float
    """Mean score after minus before; 0 without tasks."""
    interval: Interval
    """Of the difference, two-sided at 1 - 2 x the rule's alpha."""
    p_value: float
    """One-sided, of the test that the rule names."""
    n: int
    """Tasks."""
    reason: str


def decide(before_P: ArrayLike, after_P: ArrayLike, rule: PairedRule, *, seed: int = 0) -> GateDecision:
    """Accept or reject a change from the scores of the same tasks before and after.

    For zeros and ones the sign-flip test is the exact McNemar test. `seed` draws the flips where it is not exact
    (`statistics.sign_flip_p_value`). No scores at all: rejected.

    Raises:
        ValueError: the two do not have one value in [0, 1] for the same tasks each.
    """
    before, after = np.asarray(before_P, dtype=np.float64), np.asarray(after_P, dtype=np.float64)
    if before.size == 0 == after.size:
        return GateDecision(False, 0.0, (-1.0, 1.0), 1.0, 0, "there are no scores to compare")
    difference, low, high = paired_difference(before, after, confidence=1 - 2 * rule.alpha)
    if rule.kind == "better":
        p_value = sign_flip_p_value(after - before, seed=seed)
        large = difference >= rule.min_effect - _CLOSE
        accepted = "better"
        refused = "not shown to be better" if large else f"below the least gain of {rule.min_effect:g}"
    else:
        p_value = paired_score_p_value(before, after, -rule.min_effect)
        large = difference > -rule.min_effect
        accepted, refused = f"not worse by {rule.min_effect:g}", f"may be worse by {rule.min_effect:g}"
    accept = bool(large and p_value <= rule.alpha + _CLOSE)
    said = accepted if accept else refused
    reason = f"{said}: difference {difference:+.3f}, p = {p_value:.3g} at a level of {rule.alpha:.3g}"
    return GateDecision(accept, difference, (low, high), p_value, before.size, reason)


def certain(
    before_P: ArrayLike, after_P: ArrayLike, remaining: int, rule: PairedRule, *, seed: int = 0
) -> GateDecision | None:
    """The decision if the scores of `remaining` further tasks cannot change it, else None.

    The interval and the p-value are those of the scores so far. For `better` the decision is monotone in each score, so the
    two extremes settle it. For `not_worse` only the mean is bounded: a rejection can be certain early, an acceptance cannot.

    Args:
        before_P: scores so far; `after_P`: of the same tasks.
        after_P: see `before_P`.
        remaining: tasks still to come, behind these.
        rule: the rule.
        seed: as for `decide` on all scores.

    Raises:
        ValueError: as `decide`.
    """
    now = decide(before_P, after_P, rule, seed=seed)
    if remaining <= 0:
        return now
    one, zero = np.ones(remaining), np.zeros(remaining)
    before, after = np.asarray(before_P, dtype=np.float64), np.asarray(after_P, dtype=np.float64)
    best = (np.concatenate([before, zero]), np.concatenate([after, one]))
    worst = (np.concatenate([before, one]), np.concatenate([after, zero]))
    reason = f"certain before the last {remaining} tasks: their scores cannot change it"
    if rule.kind == "not_worse":
        hopeless, sure = float((best[1] - best[0]).mean()) <= -rule.min_effect, False
    else:
        hopeless = not decide(*best, rule, seed=seed).accept
        sure = not hopeless and decide(*worst, rule, seed=seed).accept
    return replace(now, accept=sure, reason=reason) if hopeless or sure else None


V = TypeVar("V")
T = TypeVar("T")
ScoreFn = Callable[..., Sequence[float | None]]
"""Called as `score(version, tasks, seed=...)`: one mean score in [0, 1] a task, in order; None where none of its rollouts could be scored."""

CHUNK = 16
"""Tasks that are rolled out before the gate looks whether the decision is certain."""


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


def gate_change(before: V, after: V, score: ScoreFn, tasks: Sequence[T], rule: PairedRule, *, seed: int) -> GateOutcome:
    """Score both versions on the same tasks with the same seeds, and decide; stops as soon as the decision is certain.

    A task that could not be scored on one side counts as a tie.

    Args:
        before: the version in use.
        after: the version that would take its place.
        score: rolls out.
        tasks: held out from training, in a fixed order.
        rule: when to accept.
        seed: of the rollouts and of the test.
    """
    scores: tuple[list[float | None], list[float | None]] = ([], [])
    decision: GateDecision | None = decide([], [], rule)
    for start in range(0, len(tasks), CHUNK):
        part, number = tasks[start : start + CHUNK], derive_seed(seed, "gate", start)
        for version, found in zip((before, after), scores, strict=True):
            found += score(version, part, seed=number)
        pairs = [(0.0, 0.0) if None in pair else pair for pair in zip(*scores, strict=True)]
        first, second = np.asarray(pairs, dtype=np.float64).T
        decision = certain(first, second, len(tasks) - start - len(part), rule, seed=seed)
        if decision is not None:
            break
    assert decision is not None, "with no task remaining it is certain"
    return GateOutcome(decision, tuple(scores[0]), tuple(scores[1]), len(tasks))
