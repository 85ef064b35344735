"""Scores of documents on the selection items, and the decision on a candidate: strict, as the paper's, or by a paired test.

Each document is evaluated once, and no further than the decision needs: scores are cached by the content of the document, and a
candidate is rolled out chunk by chunk, first on the items that the present document does worst on, and abandoned once no result of the
remaining items could make it pass: the decision is that of a whole evaluation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from skill_ttrl.config import OptimizeGateConfig
from skill_ttrl.errors import ConfigError, did_you_mean
from skill_ttrl.optimize.calls import Calls, Item
from skill_ttrl.optimize.types import GateResult, RolloutResult, compute_score, skill_hash

GateMetric = Literal["hard", "soft", "mixed"]
CHUNK = 8
"""Items that are rolled out before the evaluation looks whether the candidate can still pass."""
ALPHA = 0.05
"""One-sided error of a decision under `better`."""


@dataclass(frozen=True)
class Evaluation:
    """Results of a document on items, in the items' order; fewer than the items where it was abandoned."""

    results: tuple[RolloutResult, ...]
    scores: tuple[float, ...]
    """Score of each result under the gate's metric, in [0, 1]."""
    items: int
    """Items of a whole evaluation."""
    cached: bool = False
    """True if it had been evaluated before."""
    score: float = 0.0
    """Mean under the gate's metric."""

    @property
    def whole(self) -> bool:
        """True if every item was rolled out."""
        return len(self.results) == self.items


@dataclass
class Selection:
    """The selection items and what documents have scored on them."""

    items: Sequence[Item]
    calls: Calls
    gate: OptimizeGateConfig
    _known: dict[str, dict[int, RolloutResult]] = field(default_factory=dict)
    """Results by document and place of the item."""

    def evaluate(self, document: str, *, against: Evaluation | None = None) -> Evaluation:
        """Roll out `document` on the items, or take what it scored before.

        Args:
            document: the text.
            against: the whole evaluation that it has to pass: items that scored low there come first, and the evaluation ends once no
                result of the others can make it pass. None, or `calls.early_stop` False: every item is rolled out.
        """
        found = self._known.setdefault(skill_hash(document), {})
        left = [place for place in range(len(self.items)) if place not in found]
        if against is not None:
            left.sort(key=lambda place: against.scores[place])
        stops = against is not None and self.calls.early_stop and self.gate.rule != "none"
        threshold = _mean(against.scores) if against is not None and stops else -1.0  # a mean is never that low
        size, before = CHUNK if stops else len(left), len(found)
        # The best mean is that in which each remaining item gives 1.
        while left and not (
            found and (sum(map(self._score, found.values())) + len(left)) / len(self.items) <= threshold
        ):
            chunk, left = left[:size], left[size:]
            results = self.calls.roll_out("selection", document, [self.items[place] for place in chunk])
            found |= dict(zip(chunk, results, strict=True))
        results = [found[place] for place in sorted(found)]
        mean = select_gate_score(*compute_score(results), self.gate.metric, self.gate.mixed_weight)
        scores, cached = tuple(map(self._score, results)), len(found) == before > 0
        return Evaluation(tuple(results), scores, len(self.items), cached, mean)

    def _score(self, result: RolloutResult) -> float:
        return select_gate_score(result.hard, result.soft, self.gate.metric, self.gate.mixed_weight)


def decide(gate: OptimizeGateConfig, current: Evaluation, candidate: Evaluation) -> tuple[bool, str]:
    """True to accept `candidate` in the place of `current`, and why in words."""
    if gate.rule == "none":
        return True, "the gate is off"
    if not candidate.whole:
        return False, f"abandoned after {len(candidate.scores)} of {candidate.items} items: it could no longer pass"
    if gate.rule == "better":
        from skill_ttrl.optimize import paired  # numpy, which the strict rule needs not load

        found = paired.decide(current.scores, candidate.scores, paired.PairedRule("better", alpha=ALPHA))
        return found.accept, found.reason
    before, after = _mean(current.scores), _mean(candidate.scores)
    return after > before, f"{after:.4f} {'>' if after > before else '<='} {before:.4f}"


def _mean(scores: Sequence[float]) -> float:
    return sum(scores) / len(scores) if scores else 0.0


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
