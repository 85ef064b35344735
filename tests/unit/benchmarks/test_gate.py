"""The simulation's rule is the one that decides."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from skill_ttrl.optimize.paired import decide


def test_many_runs_at_once_decide_as_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "benchmarks"))

    simulated: Any = import_module("gate")
    rng = np.random.default_rng(0)
    before, after = rng.random((40, 24)) < 0.4, rng.random((40, 24)) < 0.65
    for rule in simulated.RULES.values():
        expected = [decide(one, other, rule).accept for one, other in zip(before, after, strict=True)]
        assert simulated.accepts(before, after, rule).tolist() == expected
    assert any(expected) or simulated.accepts(before, after, simulated.RULES[simulated.PAIRED]).any()
