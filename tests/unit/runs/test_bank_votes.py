"""What the votes are without the bank: the line and the warning of a run's end."""

from __future__ import annotations

from dataclasses import replace

import pytest

from skill_ttrl.stages.reports.summary_text import closing_lines
from skill_ttrl.stages.evaluation.results import Evaluation, ProblemResult
from skill_ttrl.stages.training.metrics import bank_votes, bank_warning
from tests.unit.runs.test_summary import SUMMARY


def evaluation(answers: str, agreement: float, right: str | None) -> Evaluation:
    """One problem for each answer; `right` are the true ones."""
    results = tuple(
        ProblemResult(str(place), None, 4, answer, agreement, None if right is None else answer == right[place], None)
        for place, answer in enumerate(answers)
    )
    majority = None if right is None else sum(a == b for a, b in zip(answers, right, strict=True)) / len(answers)
    return Evaluation("after", "test", len(answers), 4, 1.0, None, None, {}, majority, None, None, None, {}, agreement, 0.0, results)  # fmt: skip


def test_a_bank_that_makes_votes_agree_on_wrong_answers_is_warned_of() -> None:
    votes = bank_votes(evaluation("9999", 1.0, "1239"), evaluation("1234", 0.5, "1239"))
    assert votes == {"majority_ratio": 1.0, "majority_ratio_no_skills": 0.5, "other_winners": 1.0, "majority": 0.25, "majority_no_skills": 0.75}  # fmt: skip
    found = bank_warning(votes, (-0.9, -0.1))
    assert found is not None and "agree on wrong answers: agreement is 1.00 with it and 0.50 without" in found
    assert bank_warning(votes, (-0.9, 0.1)) is None, "it may be chance"
    lines = closing_lines(replace(SUMMARY, bank_votes=votes), full=True)
    assert any("(without it): majority ratio 1.000 (0.500), maj@32 0.250 (0.750); another winner in 100%" in line for line in lines)
