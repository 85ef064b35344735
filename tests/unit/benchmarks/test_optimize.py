"""The benchmarks of the text optimizer run, and count what was done."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import optimize

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("engine", ["skillopt", "gepa"])
def test_a_budget_of_rollouts_ends_a_run(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optimize, "SIZES", (20, 8, 0))
    found = optimize.one_run(engine, 1, {"epochs": 9, "batch_size": 10}, budget=61)
    assert found.rollouts == 61 and found.requests > 0 and 0.05 < found.score <= 0.9
    nothing = optimize.one_run(engine, 1, {"epochs": 9, "batch_size": 10}, budget=3)
    assert nothing.rollouts == 3 and nothing.reached is None and nothing.score < 0.1


@pytest.mark.slow
def test_the_cost_beside_skillrl_is_counted() -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "optimize_cost.py"), "--seeds", "2"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rows = [line.split(" | ") for line in printed.splitlines() if line.startswith("| skillrl 1.0.0 |")]
    assert [float(row[4]) for row in rows] == [160, 320, 640]  # training rollouts: 4 epochs
    assert printed.count("killed once") == 6
