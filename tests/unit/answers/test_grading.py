"""Grading against a reference: what it accepts that votes keep apart, what it does not, and that votes stay an equivalence."""

from __future__ import annotations

import itertools
import json
import time
from pathlib import Path

import pytest

from skill_ttrl.answers import compute_reward, correct, equivalent, grade_answer
from skill_ttrl.voting import majority_vote

CASES = json.loads((Path(__file__).parents[2] / "data" / "answer_cases.json").read_text("utf-8"))


@pytest.mark.parametrize(("text", "reference"), CASES["graded right"], ids=lambda text: text.replace("\n", " ")[:50])
def test_a_response_that_a_grader_accepts(text: str, reference: str) -> None:
    assert compute_reward(text, reference)["score"] == 1.0


@pytest.mark.parametrize(("text", "reference"), CASES["graded wrong"], ids=lambda text: text.replace("\n", " ")[:50])
def test_a_response_that_a_grader_does_not_accept(text: str, reference: str) -> None:
    assert compute_reward(text, reference) | {"score": 0.0, "match_type": "none"} == compute_reward(text, reference)


def test_what_made_them_the_same() -> None:
    assert grade_answer("x = 5", "5")["match_type"] == "numeric"
    assert grade_answer("4, 5", "AB=4, CD=5")["match_type"] == "lenient"
    assert compute_reward("$9$", "9")["extraction"] == "whole"
    assert compute_reward("Answer \\[ \n 9 \n \\]", "9")["extraction"] == "formula"
    assert compute_reward("Hence it is 9, as was to be shown.", "9")["extraction"] == "conclusion"
    assert correct([("5", "5 cm"), (None, "5"), ("5", None), ("6", "5")]) == [True, False, False, False]


def test_a_percentage_may_answer_two_references_that_differ() -> None:
    assert correct([(r"50\%", "50"), (r"50\%", "0.5"), ("50", "0.5")]) == [True, True, False]
    assert not equivalent(r"50\%", "50")


@pytest.mark.parametrize(
    ("answers", "sizes"),
    [(["5", "5 cm", "5 centimeters", "7"], [3, 1]), (["5 cm", "5 km", "5 cm"], [2, 1]), (["5", "5 cm", "5 km", "5"], [2, 1, 1]),
     (["5", "5 cm", "6 km", "6"], [2, 2]), (["5 apples", "5"], [2])],
)  # fmt: skip
def test_a_missing_unit_is_the_one_that_the_others_state(answers: list[str], sizes: list[int]) -> None:
    for order in itertools.permutations(answers):
        vote = majority_vote(order)
        assert sorted((count for _, count in vote.classes), reverse=True) == sizes
        winner = [answer for answer, match in zip(order, vote.matches, strict=True) if match]
        assert sum(vote.matches) == sizes[0] and len({answer.split()[0] for answer in winner}) == 1


@pytest.mark.parametrize(
    "hostile",
    ["x = 2 + 3 = 9**9**9**9", "a = " * 400 + "5", ", ".join(f"x_{place} = {place}" for place in range(200)), "%" * 1900, "1,2" * 600,
     "(" * 900 + "1, 2" + ")" * 900, "≈" * 1500, r"\sum_{k=0}^{9} " * 100 + "k",
     r"\begin{matrix}" + "1 & " * 300 + r"1 \end{matrix}" * 2],
    ids=lambda text: text[:15],
)  # fmt: skip
def test_what_is_tried_in_other_words_is_bounded(hostile: str) -> None:
    began = time.perf_counter()
    assert grade_answer(hostile, "4, 7")["score"] == 0.0
    assert grade_answer("4, 7", hostile)["score"] == 0.0
    assert time.perf_counter() - began < 20.0  # each rewriting has the time limit of one answer


@pytest.mark.parametrize("denial", ["isn't", "isn’t", "cannot be", "can’t be"])
def test_a_formula_in_words_that_deny_it_is_no_answer(denial: str) -> None:
    assert compute_reward(f"Answer: It {denial} $9$", "9")["score"] == 0
    assert compute_reward("Answer: It is the number $9$", "9")["score"] == 1
