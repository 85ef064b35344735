"""Scores of documents on the selection items, and the decision on a candidate: strict, as the paper's, or by a paired test.

Each document is evaluated once, and no further than the decision needs: scores are cached by the content of the document. With `early_stop` a candidate is rolled out chunk by chunk, first on the items that
the present document does worst on, and abandoned once no result of the remaining items could make it pass: the decision is that of a
whole evaluation.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from skill_ttrl.config import OptimizeGateConfig
from skill_ttrl.optimize.calls import Calls, Item
from skill_ttrl.optimize.scores import compute_score, select_gate_score, skill_hash
from skill_ttrl.optimize.types import RolloutResult

LEADING_WORDS = frozenset(
    {"always", "avoid", "before", "ensure", "exactly", "first", "must", "never", "only", "required", "shall", "verify"}
)
"""Words that begin or bind an instruction."""

_WORD = re.compile(r"[^\W\d_]+")
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)


def density(document: str) -> float:
    """Share of the document's words that are leading words, from 0 to 1; 0 of an empty document."""
    words = [word.casefold() for word in _WORD.findall(_COMMENT.sub(" ", document))]
    return sum(word in LEADING_WORDS for word in words) / len(words) if words else 0.0


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
    score: float = 0.0
    """Mean under the gate's metric, with the bonus."""

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
        mean = select_gate_score(*compute_score(results), self.gate.metric, self.gate.mixed_weight)
        return Evaluation(tuple(results), scores, len(self.items), cached, bonus, mean + bonus)

    def _score(self, result: RolloutResult) -> float:
        return select_gate_score(result.hard, result.soft, self.gate.metric, self.gate.mixed_weight)


_CLOSE = 2e-9


@dataclass(frozen=True)
class Decision:
    """The gate's decision on a candidate."""

    accepted: bool
    reason: str
    """Why, in words."""


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
            False, f"abandoned after {len(candidate.scores)} of {candidate.items} items: it could no longer pass"
        )
    if gate.rule != "strict":
        from skill_ttrl.optimize import paired  # numpy, which the strict rule needs not load

        rule = paired.PairedRule(gate.rule, gate.min_effect, gate.alpha)
        found = paired.decide(current.scores, candidate.scores, rule)
        return Decision(found.accept, found.reason)
    before, after = _mean(current.scores) + current.bonus, _mean(candidate.scores) + candidate.bonus
    accepted = after > before + gate.min_effect
    return Decision(accepted, f"{after:.4f} {'>' if accepted else '<='} {before + gate.min_effect:.4f}")


def _mean(scores: Sequence[float]) -> float:
    return sum(scores) / len(scores) if scores else 0.0
