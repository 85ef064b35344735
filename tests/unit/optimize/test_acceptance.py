"""The gate of the text optimizer by its rules, and that an abandoned candidate is one that would have been rejected."""

from __future__ import annotations

from typing import Any

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
