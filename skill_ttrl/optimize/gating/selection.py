"""Scores of documents on the selection items, each document evaluated once, and no further than the decision needs.

Scores are cached by the content of the document. With `early_stop` a candidate is rolled out chunk by chunk, first on the items that
the present document does worst on, and abandoned once no result of the remaining items could make it pass: the decision is that of a
whole evaluation. A candidate that mends nothing is so known by the failures alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from skill_ttrl.config import OptimizeGateConfig
from skill_ttrl.optimize.calls import Calls, Item
from skill_ttrl.optimize.gating.density import density
from skill_ttrl.optimize.gating.gate import select_gate_score
from skill_ttrl.optimize.scores import compute_score, skill_hash
from skill_ttrl.optimize.types import RolloutResult

CannotPass = Callable[[Sequence[float], int], bool]
"""(scores so far, items left) → True if the document cannot pass any more."""


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
    bonus: float = 0.0
    """Added to the mean for the document's wording (`gate.semantic_density`)."""

    @property
    def whole(self) -> bool:
        """True if every item was rolled out."""
        return len(self.results) == self.items

    @property
    def hard(self) -> float:
        """Mean success of the results."""
        return compute_score(self.results)[0]

    @property
    def soft(self) -> float:
        """Mean soft score of the results."""
        return compute_score(self.results)[1]


@dataclass
class Selection:
    """The selection items and what documents have scored on them."""

    items: Sequence[Item]
    calls: Calls
    gate: OptimizeGateConfig
    _known: dict[str, dict[int, RolloutResult]] = field(default_factory=dict)
    """Results by document and place of the item."""

    def score(self, evaluation: Evaluation) -> float:
        """Mean of an evaluation under the gate's metric, with its bonus."""
        mean = select_gate_score(evaluation.hard, evaluation.soft, self.gate.metric, self.gate.mixed_weight)
        return mean + evaluation.bonus

    def evaluate(
        self, document: str, cannot_pass: CannotPass | None = None, *, against: Evaluation | None = None
    ) -> Evaluation:
        """Roll out `document` on the items, or take what it scored before.

        Args:
            document: the text.
            cannot_pass: ends the evaluation early; None: every item is rolled out.
            against: a whole evaluation; items that it scored low on come first.
        """
        found = self._known.setdefault(skill_hash(document), {})
        order = list(range(len(self.items)))
        if against is not None:
            order.sort(key=lambda place: against.scores[place])
        size = self.gate.chunk if cannot_pass is not None else len(order)
        before = len(found)
        left = [place for place in order if place not in found]
        while left and not (cannot_pass and found and cannot_pass([*map(self._score, found.values())], len(left))):
            chunk, left = left[:size], left[size:]
            results = self.calls.roll_out("selection", document, [self.items[place] for place in chunk])
            found |= dict(zip(chunk, results, strict=True))
        results = [found[place] for place in sorted(found)]
        scores, cached = tuple(map(self._score, results)), len(found) == before > 0
        bonus = self.gate.semantic_density * density(document) if self.gate.semantic_density else 0.0
        return Evaluation(tuple(results), scores, len(self.items), cached, bonus)

    def _score(self, result: RolloutResult) -> float:
        return select_gate_score(result.hard, result.soft, self.gate.metric, self.gate.mixed_weight)
