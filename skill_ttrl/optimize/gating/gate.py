"""SkillOpt's gate: a candidate replaces the document only where it scores strictly better on held-out tasks.

The best document so far is apart from the current one, so what is delivered at the end is never the worse of the two.
"""

from __future__ import annotations

from typing import Literal

from skill_ttrl.errors import ConfigError, did_you_mean
from skill_ttrl.optimize.types import GateResult

GateMetric = Literal["hard", "soft", "mixed"]
GATE_METRICS: tuple[GateMetric, ...] = ("hard", "soft", "mixed")


def select_gate_score(hard: float, soft: float, metric: str = "hard", mixed_weight: float = 0.5) -> float:
    """The score that the gate compares: `hard`, `soft`, or `mixed`, (1 - w) x hard + w x soft.

    Raises:
        ConfigError: there is no such metric, or the weight is not within [0, 1].
    """
    if metric == "hard":
        return float(hard)
    if metric == "soft":
        return float(soft)
    if metric != "mixed":
        raise ConfigError(f"Unknown gate metric: {metric!r}.{did_you_mean(str(metric), GATE_METRICS)}")
    weight = float(mixed_weight)
    if not 0.0 <= weight <= 1.0:
        raise ConfigError(f"mixed_weight must be in [0, 1], got {weight}. 0 is hard alone, 1 is soft alone.")
    return (1.0 - weight) * float(hard) + weight * float(soft)


def evaluate_gate(  # the signature is skillrl's
    *,
    candidate_skill: str,
    cand_hard: float,
    current_skill: str,
    current_score: float,
    best_skill: str,
    best_score: float,
    best_step: int,
    global_step: int,
    cand_soft: float = 0.0,
    metric: str = "hard",
    mixed_weight: float = 0.5,
) -> GateResult:
    """Decide on a candidate: better than the best, better than the current document, or neither.

    Raises:
        ConfigError: as `select_gate_score`.
    """
    score = select_gate_score(cand_hard, cand_soft, metric, mixed_weight)
    if score > best_score:
        return GateResult("accept_new_best", candidate_skill, score, candidate_skill, score, global_step)
    if score > current_score:
        return GateResult("accept", candidate_skill, score, best_skill, best_score, best_step)
    return GateResult("reject", current_skill, current_score, best_skill, best_score, best_step)
