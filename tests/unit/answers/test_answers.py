"""Answers: extraction that never fails, equality that is one, grades as published."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skill_ttrl.answers import canonical, compute_reward, equivalent, extract, grade_answer
from skill_ttrl.answers.latex.numbers import read_number as parse_number
from skill_ttrl.answers.latex.spans import unbox

CASES = json.loads((Path(__file__).parents[2] / "data" / "answer_cases.json").read_text("utf-8"))
"""Pairs of answers that are the same and that are not, and texts with the answer that stands in them."""
PIECES = [
    "0",
    "1",
    "2",
    ".",
    ",",
    "/",
    "-",
    "+",
    " ",
    "e",
    "\\frac{",
    "}",
    "{",
    "$",
    "\\text{",
    "x",
    "000",
    "\\left(",
    "٣",
]
ANSWERS = st.one_of(st.lists(st.sampled_from(PIECES), max_size=8).map("".join), st.text(max_size=20))
MARKS = [
    "<answer>",
    "</answer>",
    "\\boxed{",
    "\\fbox{",
    "{",
    "}",
    "answer is",
    "final answer is",
    ":",
    "\n",
    " ",
    "$",
    "7",
]
TEXTS = st.one_of(st.lists(st.sampled_from(MARKS), max_size=25).map("".join), st.text(max_size=60))
ANYTHING = st.text(st.characters(exclude_categories=()), max_size=40)  # unpaired surrogates too


@given(ANSWERS)
def test_equality_is_reflexive_except_for_nothing(answer: str) -> None:
    assert equivalent(answer, answer) == (canonical(answer) is not None)
    if any(character.isalnum() for character in answer):
        assert equivalent(answer, answer)


@given(ANSWERS, ANSWERS)
def test_equality_is_symmetric(a: str, b: str) -> None:
    assert equivalent(a, b) == equivalent(b, a)


@given(st.lists(ANSWERS, min_size=3, max_size=6))
def test_equality_is_transitive(answers: list[str]) -> None:
    for a in answers:
        for b in answers:
            for c in answers:
                if equivalent(a, b) and equivalent(b, c):
                    assert equivalent(a, c)


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


@pytest.mark.parametrize(
    "hostile",
    [
        "9" * 10**6,
        "1e999999999",
        "1e-999999999",
        "1e9999",
        "-" * 10**5,
        "1/" * 10**5,
        "{" * 10**5,
        r"\text{" * 10**5,
        r"\frac{" * 10**5,
        "1," * 10**5,
        " " * 10**6,
        "." * 10**6 + "x",
        "\ud800",
        "٣٤",
        "٣" * 5000,
        "²",
    ],
)
def test_hostile_answers_are_decided_at_once(hostile: str) -> None:
    began = time.perf_counter()
    assert not equivalent(hostile, "1")
    assert equivalent(hostile, hostile) == bool(hostile.strip())
    assert time.perf_counter() - began < 1.0


def test_an_exponent_is_exact_up_to_its_bound() -> None:
    assert equivalent("1e400", "10e399") and equivalent("1e-400", "0." + "0" * 399 + "1")
    assert parse_number("1e401") is None and parse_number("9" * 401) is None
    assert parse_number("1/0") is None and parse_number("1/-0.0") is None


@given(st.one_of(TEXTS, ANYTHING))
def test_extraction_gives_an_answer_or_none_for_any_text(text: str) -> None:
    for last_number in (False, True):
        answer = extract(text, last_number=last_number)
        assert answer is None or (answer and answer == answer.strip())
        if answer is not None:
            equivalent(answer, "1")


@pytest.mark.parametrize(
    "text",
    [
        "<answer>" * 120_000,
        "</answer>" * 110_000,
        "<answer></answer>" * 60_000,
        "\\boxed{" * 140_000,
        "answer is" + "\n" * 10**6,
        "answer is" * 110_000,
        "answer is:\n" * 90_000,
        "answer is" + " " * 10**6,
        "answer is correct " * 60_000,
        "answer is **" * 90_000,
        "answer" + " *" * 500_000,
        ("\n" + " " * 50) * 20_000,
        "\n**B** \n" * 120_000 + "x",
        "answers are $" * 80_000,
        "1" * 10**6,
        "1," * 500_000,
        "-" * 10**6,
        "a" * 10**6,
        "{" * 10**6,
        "<answer>" + "x" * 10**6,
    ],
    ids=lambda text: f"{text[:12]!r}",
)
def test_a_megabyte_takes_no_longer_than_reading_it(text: str) -> None:
    began = time.process_time()  # other processes take none of it
    extract(text, last_number=True)
    assert time.process_time() - began < 2.0


@pytest.mark.parametrize(("text", "answer"), CASES["extracted"])
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
