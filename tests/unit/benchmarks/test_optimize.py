"""The benchmarks of the text optimizer run, and count what was done."""

from __future__ import annotations

import pytest

from benchmarks import optimize


@pytest.mark.parametrize("engine", ["skillopt", "gepa"])
def test_a_budget_of_rollouts_ends_a_run(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optimize, "SIZES", (20, 8, 0))
    found = optimize.one_run(engine, 1, {"epochs": 9, "batch_size": 10}, budget=61)
    assert found.rollouts == 61 and found.requests > 0 and 0.05 < found.score <= 0.9
    nothing = optimize.one_run(engine, 1, {"epochs": 9, "batch_size": 10}, budget=3)
    assert nothing.rollouts == 3 and nothing.reached is None and nothing.score < 0.1
