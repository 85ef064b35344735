"""`SkillTTRL/Math-v0`: Gymnasium's own checks, grading, and any text as an action."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skill_ttrl.envs.math.env import MathEnv
from skill_ttrl.errors import EnvError


def play(action: str, reference: str | None = "128") -> tuple[float, dict[str, Any]]:
    env = MathEnv()
    question, _ = env.reset(options={"question": "Compute 76+52.", "ground_truth": reference})
    assert question == "Compute 76+52."
    observation, reward, terminated, truncated, info = env.step(action)
    assert (observation, terminated, truncated) == ("", True, False)
    return reward, info


@pytest.mark.parametrize(
    ("action", "reward", "answer"),
    [
        ("8;12;<answer>128</answer>", 1.0, "128"),
        ("so it is \\boxed{128.0}", 1.0, "128.0"),
        ("<answer>127</answer>", 0.0, "127"),
        ("<answer> </answer>", 0.0, None),
        ("128?", 0.0, None),
        ("", 0.0, None),
    ],
)
def test_the_answer_is_graded(action: str, reward: float, answer: str | None) -> None:
    earned, info = play(action)
    assert earned == reward and info["answer"] == answer and info["graded"] is True
    assert (info["answer_rule"] is None) == (answer is None)


def test_an_answer_that_stands_in_its_question_can_count_as_none() -> None:
    env = MathEnv(last_number=True, copies=False)
    for said, answer in (("7", None), ("so 17", None), ("18", "18"), ("1", "1")):
        env.reset(options={"question": "What comes after 17 (not 7)?", "ground_truth": "18"})
        assert env.step(said)[4]["answer"] == answer


def test_without_a_reference_nothing_is_graded() -> None:
    assert play("<answer>128</answer>", None) == (0.0, {"answer": "128", "answer_rule": "tag", "graded": False})


@given(st.text(st.characters(exclude_categories=())))
def test_any_text_is_an_action(text: str) -> None:
    for action in (text, f"<answer>{text}</answer>", f"\\boxed{{{text}"):
        reward, info = play(action, reference="4")
        assert reward in (0.0, 1.0)
        assert reward == 0.0 or info["answer"] is not None


def test_the_seed_draws_the_problem_and_the_answer_is_not_shown() -> None:
    env = MathEnv()
    drawn = [env.reset(seed=seed) for seed in range(40)]
    assert len({question for question, _ in drawn}) > 30
    assert drawn == [env.reset(seed=seed) for seed in range(40)]
    own = {task.options["question"]: task for task in env.tasks("train")}
    for seed, (question, info) in enumerate(drawn):
        env.reset(seed=seed)
        reference = own[question].ground_truth
        assert info == {} and reference is not None and reference not in question
        assert env.step(f"<answer>{reference}</answer>")[1] == 1.0


def test_a_series_shows_one_problem_after_another_and_grades_the_last() -> None:
    env = MathEnv()
    options = {"question": "1+1?", "then": ["2+2?", "3+3?"], "ground_truth": "6"}
    seen, _ = env.reset(options=options)
    shown = [seen]
    for action in ("<answer>2</answer>", "anything"):
        seen, reward, terminated, truncated, info = env.step(action)
        shown.append(seen)
        assert (reward, terminated, truncated, info["graded"]) == (0.0, False, False, True)
    assert shown == ["1+1?", "2+2?", "3+3?"]
    assert env.step("<answer>6</answer>")[:4] == ("", 1.0, True, False)
    with pytest.raises(EnvError, match="needs a list of str as then"):
        env.reset(options={"question": "x", "then": "y"})
