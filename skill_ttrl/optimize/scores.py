"""Scores of a batch of rollouts, SkillOpt's strict gate on them, and names of documents and other values by their content."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any, Literal, get_args

from skill_ttrl.errors import ConfigError, did_you_mean
from skill_ttrl.optimize.types import GateResult, RolloutResult

GateMetric = Literal["hard", "soft", "mixed"]


def compute_score(results: Iterable[RolloutResult | Mapping[str, Any]]) -> tuple[float, float]:
    """Means of `hard` and `soft`; (0, 0) of nothing."""
    rows = list(results)
    hard = soft = 0.0  # added in turn: `sum` compensates from Python 3.12 on, and scores are compared to the last digit
    for each in rows:
        hard += float(each.hard if isinstance(each, RolloutResult) else each.get("hard") or 0)
        soft += float(each.soft if isinstance(each, RolloutResult) else each.get("soft") or 0)
    return (hard / len(rows), soft / len(rows)) if rows else (0.0, 0.0)


def graded(results: Iterable[RolloutResult]) -> list[RolloutResult]:
    """The results whose success is known: only these are lessons."""
    return [result for result in results if not result.ungraded]


def skill_hash(content: str) -> str:
    """16 hexadecimal digits of the document's SHA-256: the key of its evaluations."""
    return hashlib.sha256((content or "").encode("utf-8", "surrogatepass")).hexdigest()[:16]


def content_hash(*content: Any) -> str:
    """24 hexadecimal digits that are the same for the same JSON content."""
    text = json.dumps(content, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


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
        raise ConfigError(f"Unknown gate metric: {metric!r}.{did_you_mean(str(metric), get_args(GateMetric))}")
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
