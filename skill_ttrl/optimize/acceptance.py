"""The decision on a candidate document: strict, as the paper's, or by a paired test over the selection items."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from skill_ttrl.config import OptimizeGateConfig
from skill_ttrl.optimize.selection import CannotPass, Evaluation


@dataclass(frozen=True)
class Decision:
    """What the gate says of a candidate."""

    accepted: bool
    reason: str
    """Why, in words."""
    p_value: float | None = None
    """One-sided, of the paired test; None under `strict`."""


def cannot_pass(gate: OptimizeGateConfig, current: Evaluation) -> CannotPass | None:
    """The rule that ends an evaluation early; None where all items are needed."""
    if not gate.use or not gate.early_stop:
        return None
    total = len(current.scores)
    threshold = sum(current.scores) / total + current.bonus + gate.min_effect if total else 0.0

    def hopeless(scores: Sequence[float], left: int) -> bool:
        # Each remaining item gives 1 at most, and the bonus its weight at most. The paired rule asks for more than the strict one.
        return (sum(scores) + left) / (len(scores) + left) + gate.semantic_density <= threshold

    return hopeless


def decide(gate: OptimizeGateConfig, current: Evaluation, candidate: Evaluation) -> Decision:
    """Accept `candidate` in the place of `current`, or not."""
    if not gate.use:
        return Decision(True, "the gate is off")
    if not candidate.whole:
        return Decision(
            False, f"abandoned after {len(candidate.scores)} of {candidate.items} items: it could not pass any more"
        )
    before, after = _mean(current.scores) + current.bonus, _mean(candidate.scores) + candidate.bonus
    accepted = after > before + gate.min_effect
    return Decision(accepted, f"{after:.4f} {'>' if accepted else '<='} {before + gate.min_effect:.4f}")


def _mean(scores: Sequence[float]) -> float:
    return sum(scores) / len(scores) if scores else 0.0
