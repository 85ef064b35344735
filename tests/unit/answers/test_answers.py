"""Answers: extraction that never fails, equality that is one, grades as published."""

from __future__ import annotations

import itertools
import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skill_ttrl import batch_majority_vote, compute_voting_rewards
from skill_ttrl.answers import compute_reward, conditions, correct, equivalent, extract, grade_answer, satisfied
from skill_ttrl.answers.extract import unbox
from skill_ttrl.answers.units import read_number as parse_number
from skill_ttrl.voting import majority_vote

CASES = json.loads((Path(__file__).parents[2] / "data" / "answer_cases.json").read_text("utf-8"))
"""Pairs of answers that are the same and that are not, and texts with the answer that stands in them."""


@given(st.fractions(max_denominator=999), st.sampled_from(["", " ", "$", "\\text{"]))
def test_a_number_is_the_same_in_every_dress(value: object, dress: str) -> None:
    close = {"$": "$", "\\text{": "}"}.get(dress, dress)
    assert equivalent(f"{dress}{value}{close}", f"{value}.")


@pytest.mark.parametrize(("a", "b"), CASES["same"])
def test_pairs_that_are_the_same(a: str, b: str) -> None:
    assert equivalent(a, b)


@pytest.mark.parametrize(("a", "b"), CASES["different"])
def test_pairs_that_are_not(a: str, b: str) -> None:
    assert not equivalent(a, b)


def test_an_exponent_is_exact_up_to_its_bound() -> None:
    assert equivalent("1e400", "10e399") and equivalent("1e-400", "0." + "0" * 399 + "1")
    assert parse_number("1e401") is None and parse_number("9" * 401) is None
    assert parse_number("1/0") is None and parse_number("1/-0.0") is None


@pytest.mark.parametrize("parts", CASES["megabytes"], ids=lambda parts: f"{parts[0][:12]!r}")
def test_a_long_text_takes_no_longer_than_reading_it(parts: list[Any]) -> None:
    """Parts are texts, and texts with how often they are repeated."""
    text = "".join(part if isinstance(part, str) else part[0] * (part[1] // 4) for part in parts)
    began = time.process_time()  # other processes take none of it
    extract(text, last_number=True)
    assert time.process_time() - began < 0.5


@pytest.mark.parametrize(("text", "answer"), CASES["extracted"] + CASES["boxes"])
def test_where_the_answer_stands(text: str, answer: str | None) -> None:
    assert extract(text) == answer


def test_the_last_number_only_where_it_is_asked_for() -> None:
    assert extract("3 and then -1,234.5") is None
    assert extract("3 and then -1,234.5", last_number=True) == "-1,234.5"
    assert extract("none", last_number=True) is None


@given(
    st.recursive(
        st.just("a"), lambda inner: st.one_of(inner.map("{{{}}}".format), st.tuples(inner, inner).map("".join))
    )
)
def test_nested_braces_come_back_whole(content: str) -> None:
    assert unbox(f"\\boxed{{{content}}} trailing }} {{") == content


def test_grades_as_published() -> None:
    assert grade_answer("42.0", "42") == {"score": 1.0, "match_type": "numeric", "predicted_answer": "42.0"}
    assert grade_answer("1/2", "0.5")["match_type"] == "numeric"
    assert grade_answer("42", "42")["match_type"] == "exact"
    assert grade_answer("Cat", r"\text{cat}")["match_type"] == "string"
    assert grade_answer(r"\frac{\sqrt{3}}{3}", r"\frac{1}{\sqrt{3}}")["match_type"] == "symbolic"
    assert grade_answer("41", "42") == {"score": 0.0, "match_type": "none", "predicted_answer": "41"}
    for nothing in (None, "", "  "):
        assert grade_answer(nothing, "42") == {"score": 0.0, "match_type": "none", "predicted_answer": nothing}
        assert grade_answer(nothing, "")["score"] == 0.0
    assert compute_reward(r"so \boxed{42.0}", "42") == {
        "score": 1.0,
        "match_type": "numeric",
        "predicted_answer": "42.0",
        "extraction": "boxed",
    }
    assert compute_reward("no idea, 42", "42")["extraction"] is None
    assert compute_reward("no idea, 42", "42", last_number=True)["extraction"] == "last_number"


@pytest.mark.parametrize(("reference", "answer"), CASES["other forms"])
def test_another_form_of_the_same_answer(reference: str, answer: str) -> None:
    assert grade_answer(answer, reference)["score"] == 1
    assert grade_answer(reference, answer)["score"] == 1
    assert equivalent(answer, reference)
    assert majority_vote([answer, reference, "no"]).matches == (True, True, False)


@pytest.mark.parametrize(("reference", "answer"), CASES["near misses"])
def test_a_near_miss_is_another_answer(reference: str, answer: str) -> None:
    assert grade_answer(answer, reference)["score"] == 0
    assert not equivalent(answer, reference)


@pytest.mark.parametrize("missing", ["NaN", "nan", float("nan"), None])
def test_a_true_answer_that_is_missing_is_met_by_nothing(missing: object) -> None:
    for answer in ("NaN", "nan", "42"):
        assert grade_answer(answer, missing)["score"] == 0  # type: ignore[arg-type]
        assert compute_reward(f"<answer>{answer}</answer>", missing)["score"] == 0  # type: ignore[arg-type]


def test_numbers_are_answers() -> None:
    assert grade_answer(42, 42) == {"score": 1.0, "match_type": "exact", "predicted_answer": "42"}
    assert grade_answer("42.0", 42)["match_type"] == "numeric"
    assert compute_reward("so <answer>42</answer>", 42)["score"] == 1
    assert compute_reward("so <answer>0.5</answer>", 0.5)["score"] == 1
    vote = majority_vote([42, "42", 41, None, 2.5])
    assert (vote.answer, vote.matches) == ("42", (True, True, False, False, False))
    assert batch_majority_vote([[1, 2, 2]])[0].answer == "2"
    assert compute_voting_rewards([1, 1, 2]) == ([1.0, 1.0, 0.0], "1", 2 / 3)


@pytest.mark.parametrize("wrong", [["4"], {"answer": 4}, b"4", True])
def test_what_is_no_answer_is_refused_in_words(wrong: object) -> None:
    for call in (
        lambda: grade_answer(wrong, "4"),  # type: ignore[arg-type]
        lambda: compute_reward("<answer>4</answer>", wrong),  # type: ignore[arg-type]
        lambda: majority_vote([wrong]),  # type: ignore[list-item]
        lambda: batch_majority_vote([[wrong]]),  # type: ignore[list-item]
    ):
        with pytest.raises(TypeError, match=f"An answer is a text or a number, found {type(wrong).__name__}"):
            call()


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


NO_VALUES = [
    "x",
    "x + 0",
    "x + 7 = 25",
    "x = x",
    "0/0",
    "oo",
    "nan",
    "18, 19",
    r"\pm 18",
    "18) + (0",
    "9^{9^{9}}",
    "(" * 900,
    "1" * 3000,
]
CHECKED: dict[str, tuple[list[str], list[str | None]]] = {
    "x + 7 = 25": (["18", "18.0", "x = 18", r"\boxed{\frac{36}{2}}", "18 apples", "1800%"], [None, "", "17", "y", "17 = 18", *NO_VALUES]),
    "2x = 10": (["5"], ["-5", "0) + (10", "5; 5", *NO_VALUES]),
    "x^2 - 5x + 6 = 0": (["2", "3", r"\sqrt[3]{8}"], ["2, 3", "2 or 3", "4", *NO_VALUES]),
    "x^2 = 2": ([r"\sqrt{2}", r"x = -\sqrt2", "sqrt(2) cm"], ["1.414", r"\sqrt{2} million", r"\pm\sqrt2", *NO_VALUES]),
    "x^x = 27": (["3"], ["10^1000", "2^{5000}", *NO_VALUES]),
    "6/x = 2": (["3"], ["0", "1/0"]),
    "x/x = 1": (["3"], ["0", "0/1"]),
    "0 < x <= 5, x^2 = 4": (["2"], ["-2"]),
    "x ≠ 3; x > 0": (["4", r"\pi"], ["3", "-1", "i"]),
    "x = 1,000": (["1000", "1,000"], ["1", "0"]),
}  # fmt: skip
"""Check → answers that satisfy it, and answers that do not."""


@pytest.mark.parametrize("check", CHECKED)
def test_an_answer_takes_the_place_of_the_unknown(check: str) -> None:
    right, wrong = CHECKED[check]
    began = time.process_time()
    assert satisfied([*right, *wrong], check) == [True] * len(right) + [False] * len(wrong)
    assert time.process_time() - began < 1


@pytest.mark.parametrize(
    "text", ["", "x", "1 = 1", "x + = 3", "x y = 3", "xx = 4", "x < oo", "(x, 1) = (2, 1)", "open('x') = x", "9" * 9000 + "= x"]
)  # fmt: skip
def test_what_is_no_check_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no"):
        conditions(text)
