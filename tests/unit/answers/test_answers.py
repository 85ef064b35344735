"""Answers: extraction that never fails, equality that is one, grades as published."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skill_ttrl.answers import compute_reward, equivalent, extract, grade_answer
from skill_ttrl.answers.extract import unbox
from skill_ttrl.answers.units import read_number as parse_number

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
