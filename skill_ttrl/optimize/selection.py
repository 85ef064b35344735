"""Scores of documents on the selection items, each document evaluated once, and no further than the decision needs.

Scores are cached by the content of the document. With `early_stop` a candidate is rolled out chunk by chunk, and abandoned once no
result of the remaining items could make it pass: the decision is that of a whole evaluation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from skill_ttrl.config import OptimizeGateConfig
from skill_ttrl.optimize.calls import Calls, Item
from skill_ttrl.optimize.gate import select_gate_score
from skill_ttrl.optimize.scores import compute_score, skill_hash
from skill_ttrl.optimize.types import RolloutResult

CannotPass = Callable[[Sequence[float], int], bool]
"""(scores so far, items left) → True if the document cannot pass any more."""


@dataclass(frozen=True)
class Evaluation:
    """Results of a document on items, in their order; fewer than the items where it was abandoned."""

    results: tuple[RolloutResult, ...]
    items: int
    """Items of a whole evaluation."""
    scores: tuple[float, ...]
    """Score of each result under the gate's metric, in [0, 1]."""
    cached: bool = False
    """True if it had been evaluated before."""

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
    _known: dict[str, Evaluation] = field(default_factory=dict)

    def score(self, evaluation: Evaluation) -> float:
        """Mean of an evaluation under the gate's metric."""
        return select_gate_score(evaluation.hard, evaluation.soft, self.gate.metric, self.gate.mixed_weight)

    def evaluate(self, document: str, cannot_pass: CannotPass | None = None) -> Evaluation:
        """Roll out `document` on the items, or take what it scored before.

        Args:
            document: the text.
            cannot_pass: ends the evaluation early; None: every item is rolled out.
        """
        name = skill_hash(document)
        known = self._known.get(name)
        if known is not None and (known.whole or (cannot_pass and cannot_pass(known.scores, known.items - len(known.scores)))):
            return Evaluation(known.results, known.items, known.scores, cached=True)
        results: list[RolloutResult] = [] if known is None else [*known.results]
        scores = [self._score(result) for result in results]
        size = self.gate.chunk if cannot_pass is not None and self.gate.early_stop else len(self.items)
        while len(results) < len(self.items):
            if results and cannot_pass is not None and cannot_pass(scores, len(self.items) - len(results)):
                break
            chunk = self.items[len(results) : len(results) + size]
            results += self.calls.roll_out("selection", document, chunk)
            scores = [self._score(result) for result in results]
        self._known[name] = found = Evaluation(tuple(results), len(self.items), tuple(scores))
        return found

    def _score(self, result: RolloutResult) -> float:
        return select_gate_score(result.hard, result.soft, self.gate.metric, self.gate.mixed_weight)
