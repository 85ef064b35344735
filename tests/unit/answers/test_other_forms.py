"""Other ways to write an answer: each is graded equal and votes with the plain form, and its near misses do neither."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from skill_ttrl import batch_majority_vote, compute_reward, compute_voting_rewards, grade_answer, majority_vote
from skill_ttrl.answers import equivalent, extract

CASES = json.loads((Path(__file__).parents[2] / "data" / "answer_cases.json").read_text("utf-8"))


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


@pytest.mark.parametrize(("text", "answer"), CASES["boxes"])
def test_a_box_without_a_value_is_no_mark(text: str, answer: str | None) -> None:
    assert extract(text) == answer


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
