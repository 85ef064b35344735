"""The scripted world of the proofs is what its docstring says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from statistics import fmean

import pytest

from tests.rule_follower import (
    DISTRACTIONS,
    OPTIMUM,
    RULES,
    expected_score,
    is_optimal,
    line,
    make_items,
    roll_out_one,
)
from tests.rule_optimizer import ScriptedOptimizer

ITEMS = make_items(60, "val", seed=3)
WRONG = line("dates", RULES["dates"][1])


@pytest.mark.parametrize(
    "document",
    ["", OPTIMUM, OPTIMUM + DISTRACTIONS[0] + "\n", OPTIMUM + WRONG, line("dates"), OPTIMUM + "Think.\n" * 30],
)
def test_the_mean_of_rollouts_is_the_expected_score(document: str) -> None:
    found = fmean(roll_out_one(document, item, seed=seed).hard for item in ITEMS for seed in range(60))
    assert found == pytest.approx(expected_score(document, ITEMS), abs=0.02)


def test_what_helps_and_what_harms() -> None:
    best = expected_score(OPTIMUM, ITEMS)
    assert best == pytest.approx(0.9) and is_optimal(OPTIMUM) and not is_optimal("")
    assert expected_score(line("dates"), ITEMS) > expected_score("", ITEMS) > expected_score(WRONG, ITEMS)
    for harm in (WRONG, DISTRACTIONS[1], "Think.\n" * 9):
        assert expected_score(OPTIMUM + harm + "\n", ITEMS) < best and not is_optimal(OPTIMUM + harm + "\n")
    assert is_optimal(
        f"<!-- SLOW_UPDATE_START -->\n{OPTIMUM}<!-- SLOW_UPDATE_END -->"
    )  # a rule counts wherever it stands


def test_a_rollout_and_an_answer_are_the_same_in_every_process() -> None:
    here = [roll_out_one("- dates: x", item, seed=7).to_dict() for item in ITEMS[:5]]
    asked = "## Document\n- dates: x\n\n## Rollouts that failed (1)\nnot as asked: dates, units"
    answer = ScriptedOptimizer(seed=7)("", asked, max_tokens=1, stage="analyst_error").text
    code = (
        "import json, sys; from tests.rule_follower import *; from tests.rule_optimizer import *;"
        "rows = [roll_out_one('- dates: x', item, seed=7).to_dict() for item in make_items(60, 'val', seed=3)[:5]];"
        "print(json.dumps([rows, ScriptedOptimizer(seed=7)('', sys.argv[1], max_tokens=1, stage='analyst_error').text]))"
    )
    run = [sys.executable, "-c", code, asked]
    there = json.loads(
        subprocess.run(run, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[3]).stdout
    )
    assert there == [here, answer]
