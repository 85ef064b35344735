"""An evaluation that ends early decides as a whole one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skill_ttrl.config import OptimizeGateConfig
from skill_ttrl.optimize.calls import Calls, Item
from skill_ttrl.optimize.gate import Selection, decide
from skill_ttrl.optimize.types import RolloutResult

PAIRS = st.lists(st.tuples(*[st.sampled_from([0.0, 0.5, 1.0])] * 2), min_size=1, max_size=40)


@pytest.mark.parametrize("rule", ["strict", "better", "none"])
@given(PAIRS)
def test_ending_early_changes_no_decision(rule: Any, pairs: list[tuple[float, float]]) -> None:
    gate = OptimizeGateConfig(rule=rule, metric="soft")
    rolled: list[int] = []

    def roll_out(document: str, items: Sequence[Item], **_: Any) -> list[RolloutResult]:
        rolled.extend(item["id"] for item in items)
        return [RolloutResult(str(item["id"]), soft=pairs[item["id"]][document == "new"]) for item in items]

    decisions = []
    for early_stop in (False, True):
        selection = Selection(
            [{"id": place} for place in range(len(pairs))], Calls(None, roll_out, early_stop=early_stop), gate
        )
        before = selection.evaluate("old")
        rolled.clear()
        candidate = selection.evaluate("new", against=before)
        decisions.append(decide(gate, before, candidate)[0])
        assert candidate.whole == (len(rolled) == len(pairs)) and (candidate.whole or early_stop)
    assert decisions[0] == decisions[1]
