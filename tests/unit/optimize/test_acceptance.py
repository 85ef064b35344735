"""The gate of the text optimizer by its rules, and that an abandoned candidate is one that would have been rejected."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skill_ttrl.config import OptimizeGateConfig
from skill_ttrl.optimize.selection import Evaluation, cannot_pass, decide
from skill_ttrl.optimize.types import RolloutResult


def evaluation(scores: list[float]) -> Evaluation:
    return Evaluation(tuple(RolloutResult(str(n), int(s), s) for n, s in enumerate(scores)), tuple(scores), len(scores))


PAIRS = st.lists(st.tuples(*[st.sampled_from([0.0, 0.5, 1.0])] * 2), min_size=1, max_size=16)
RULES: list[dict[str, Any]] = [
    {"rule": "strict"},
    {"rule": "strict", "min_effect": 0.25},
    {"rule": "better", "alpha": 0.2},
    {"rule": "better", "alpha": 0.2, "min_effect": 0.25},
    {"rule": "not_worse", "alpha": 0.2, "min_effect": 0.25},
]


@given(PAIRS, st.sampled_from(RULES), st.integers(0, 16))
def test_what_cannot_pass_would_be_rejected(
    pairs: list[tuple[float, float]], settings: dict[str, Any], seen: int
) -> None:
    gate = OptimizeGateConfig(**settings)
    before, after = evaluation([one for one, _ in pairs]), evaluation([other for _, other in pairs])
    hopeless, seen = cannot_pass(gate, before), min(seen, len(pairs))
    assert hopeless is not None
    if seen and hopeless(after.scores[:seen], len(pairs) - seen):
        assert not decide(gate, before, after).accepted


def test_one_item_more_is_enough_for_the_strict_rule_alone() -> None:
    before, after = evaluation([0.0] * 8), evaluation([1.0] + [0.0] * 7)
    assert decide(OptimizeGateConfig(), before, after).accepted
    found = decide(OptimizeGateConfig(rule="better"), before, after)
    assert not found.accepted and found.p_value == pytest.approx(0.5)
    assert decide(OptimizeGateConfig(rule="better"), before, evaluation([1.0] * 5 + [0.0] * 3)).accepted


def test_rules_that_do_not_fit_together_are_refused() -> None:
    for wrong in ({"rule": "not_worse"}, {"rule": "better", "semantic_density": 0.05}):
        with pytest.raises(ValueError, match=r"rule=not_worse needs|semantic_density needs"):
            OptimizeGateConfig(**wrong)
