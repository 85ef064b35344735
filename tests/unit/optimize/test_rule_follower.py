"""The scripted world of the proofs is what its docstring says."""

from __future__ import annotations

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
