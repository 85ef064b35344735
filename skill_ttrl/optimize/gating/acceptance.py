"""The decision on a candidate document: strict, as the paper's, or by a paired test over the selection items."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from skill_ttrl.config import OptimizeGateConfig
from skill_ttrl.optimize.gating.selection import CannotPass, Evaluation

_CLOSE = 2e-9


@dataclass(frozen=True)
class Decision:
    """The gate's decision on a candidate."""

    accepted: bool
    reason: str
    """Why, in words."""
    p_value: float | None = None
    """One-sided, of the paired test; None under `strict`."""


def cannot_pass(gate: OptimizeGateConfig, current: Evaluation) -> CannotPass | None:
    """The rule that ends an evaluation early; None where all items are needed."""
    if not gate.enabled or not gate.early_stop:
        return None
    margin = -gate.min_effect if gate.rule == "not_worse" else gate.min_effect
    threshold = _mean(current.scores) + current.bonus + margin if current.scores else 0.0
    if gate.rule == "better" and gate.min_effect:
        threshold -= _CLOSE  # a gain of just the least effect may pass

    def hopeless(scores: Sequence[float], left: int) -> bool:
        # Each remaining item gives 1 at most, and the bonus its weight at most. A paired test asks for more than this.
        return (sum(scores) + left) / (len(scores) + left) + gate.semantic_density <= threshold

    return hopeless


def decide(gate: OptimizeGateConfig, current: Evaluation, candidate: Evaluation) -> Decision:
    """Accept `candidate` in the place of `current`, or not."""
    if not gate.enabled:
        return Decision(True, "the gate is off")
    if not candidate.whole:
        return Decision(
            False, f"abandoned after {len(candidate.scores)} of {candidate.items} items: it could not pass any more"
        )
    if gate.rule != "strict":
        from skill_ttrl.optimize.gating import paired  # numpy, which the strict rule needs not load

        rule = paired.PairedRule(gate.rule, gate.min_effect, gate.alpha, gate.rounds)
        found = paired.decide(current.scores, candidate.scores, rule)
        return Decision(found.accept, found.reason, found.p_value)
    before, after = _mean(current.scores) + current.bonus, _mean(candidate.scores) + candidate.bonus
    accepted = after > before + gate.min_effect
    return Decision(accepted, f"{after:.4f} {'>' if accepted else '<='} {before + gate.min_effect:.4f}")


def _mean(scores: Sequence[float]) -> float:
    return sum(scores) / len(scores) if scores else 0.0
