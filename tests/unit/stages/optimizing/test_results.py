"""A trajectory as the text optimizer reads it."""

from __future__ import annotations

from typing import Any

import pytest

from skill_ttrl.stages.optimizing.rollouts import as_result
from skill_ttrl.types import Completion, Step, StopReason, Task, Trajectory


def rollout(
    answer: str | None = "7",
    *,
    reference: str | None = None,
    reward: float = 0.0,
    info: dict[str, Any] | None = None,
    stop: StopReason = "terminated",
    written: str = "It is 7.",
    **more: Any,
) -> Trajectory:
    task = Task("t-1", "E-v0", {"question": "2 + 5?"}, task_type="sum", ground_truth=reference)
    step = Step(
        "2 + 5?", written, reward, stop == "terminated", False, completion=Completion(written, (1,), (0.0,), "stop")
    )
    if info is not None:
        step = Step("2 + 5?", written, reward, True, False, completion=step.completion, info=info)
    return Trajectory(task, (step,), answer, stop, **more)


def test_a_true_answer_decides_where_the_environment_does_not_say_won() -> None:
    right, wrong = as_result(rollout(reference="7.0")), as_result(rollout("8", reference="7", reward=1.0))
    assert (right.hard, right.soft, right.fail_reason) == (1, 1.0, "")
    assert (wrong.hard, wrong.soft) == (0, 0.0) and wrong.fail_reason == "answered '8', expected '7'"
    assert (wrong.id, wrong.question, wrong.predicted_answer, wrong.reference_text) == ("t-1", "2 + 5?", "8", "7")
    assert wrong.conversation == [{"role": "user", "content": "2 + 5?"}, {"role": "assistant", "content": "It is 7."}]


def test_a_true_answer_is_not_shown_where_it_must_not_be() -> None:
    hidden = as_result(rollout("8", reference="7"), show_reference=False)
    assert hidden.reference_text == "" and "7" not in hidden.fail_reason and hidden.hard == 0


def test_the_environment_s_word_comes_first_and_its_score_is_soft() -> None:
    partly = as_result(rollout(None, reward=0.5, info={"won": False, "score": 0.5}))
    assert (partly.hard, partly.soft, partly.fail_reason) == (0, 0.5, "only partly right (score 0.50)")
    won = as_result(rollout("8", reference="7", info={"won": True, "score": 1.0}))
    assert (won.hard, won.soft) == (1, 1.0)
    assert as_result(rollout(None, reward=1.0)).hard == 1


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (rollout(None, reference="7"), "no answer was found in the reply"),
        (rollout(None, stop="max_turns"), "the task was not done after 1 turns"),
        (rollout(None, stop="error", error="ValueError: no"), "error: ValueError: no"),
        (rollout(None, stop="timeout", error="late"), "timeout: late"),
        (rollout(None, info={"graded": False}), "nothing tells whether it succeeded"),
        (rollout(None), "the task was not done"),
    ],
)
def test_a_failure_has_its_reason(made: Trajectory, why: str) -> None:
    result = as_result(made)
    assert (result.hard, result.fail_reason) == (0, why)


def test_what_nothing_grades_and_what_only_the_environment_rewards_is_marked() -> None:
    assert as_result(rollout(info={"graded": False})).ungraded
    assert not as_result(rollout(info={"graded": False}, reference="8")).ungraded
    assert as_result(rollout(None, reward=1.0)).extras == {"stop_reason": "terminated"}
    assert as_result(rollout("8", reference="7", reward=1.0)).extras["rewarded"]
    assert "rewarded" not in as_result(rollout("8", reference="7", reward=1.0, info={"won": False})).extras
