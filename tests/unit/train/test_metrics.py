"""Metrics of a training step's episodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from skill_ttrl.config import SkillTTRLConfig, load_config
from skill_ttrl.train.metrics import early_signs, episode_metrics, late_signs, several_types, tripwire_metrics
from skill_ttrl.train.rl import select_training_samples
from skill_ttrl.types import ActionStatus, Completion, Group, Step, StopReason, Task, ToolCall, Trajectory, VoteResult

PLAIN_VOTE = VoteResult(None, 0.0, (False,) * 2)


def config(**sections: Any) -> SkillTTRLConfig:
    return load_config({"agent": {"max_turns": 9, "action_parser": "action"}, "rl": {"reward": "env"}} | sections)


def step(
    verdict: ActionStatus | None = "valid",
    *,
    left_out: Mapping[str, int] | None = None,
    info: Mapping[str, Any] | None = None,
) -> Step:
    done = Completion("go", (7,), (-0.5,), "stop")
    return Step(
        "", "go", 0.0, False, False, (1, 2), done, info or {}, action_status=verdict, truncated_parts=left_out or {}
    )


def tried(
    *steps: Step, kind: str = "heat", reward: float = 0.0, error: str | None = None, stop: StopReason = "terminated"
) -> Trajectory:
    return Trajectory(Task("t", "env", task_type=kind), steps, None, stop, reward, error)


def group(*tries: Trajectory) -> Group:
    return Group(tries[0].task, tries)


def test_success_is_told_by_type_with_failed_tries_among_them() -> None:
    won, lost = step(info={"won": True}), step(info={"won": False})
    groups = [
        group(tried(lost, won), tried(lost), tried(stop="error", error="broken"), tried(won)),
        group(tried(lost, kind="cool"), tried(won, kind="cool")),
    ]
    assert several_types(each.task for each in groups) and not several_types([groups[0].task] * 2)
    figures = episode_metrics(groups, config(), by_type=True)
    assert figures["success"] == pytest.approx(3 / 6) and "score" not in figures
    assert figures["success/heat"] == pytest.approx(2 / 4) and figures["success/cool"] == pytest.approx(1 / 2)
    assert figures["episode_steps"] == pytest.approx(6 / 5)
    assert not any(name.startswith("success/") for name in episode_metrics(groups, config(), by_type=False))


@pytest.mark.parametrize(
    ("text", "status", "bare"),
    [
        ("The final answer is \\boxed{63}.", None, 1.0),
        ("3 + 60 = 63, so <answer>63</answer>", None, 0.0),
        ("<think></think><action>3</action>", "valid", 1.0),
        ("<think>I look.</think><action>3</action>", "valid", 0.0),
    ],
)
def test_what_is_nothing_but_an_answer(text: str, status: ActionStatus | None, bare: float) -> None:
    said = replace(step(status), completion=Completion(text, (7,), (-0.5,), "stop"))
    rewarded = [replace(tried(said, reward=1.0), answer="63")] * 4
    assert tripwire_metrics([group(*rewarded)], {}, answers=True)["tripwire/bare_answers"] == bare
    assert tripwire_metrics([group(*rewarded[1:])], {}, answers=True) == {}, "three say nothing"


def test_actions_prompts_and_timeouts_are_shares() -> None:
    steps = [step("invalid"), step("repaired", left_out={"turns": 2}), step(), step(left_out={"turns": 1, "skills": 3})]
    groups = [group(tried(*steps), tried(stop="timeout"))]
    agent = {"max_turns": 9, "action_parser": "action", "context_mode": "window"}
    settings = config(agent=agent, skills={}, rollout={"rollout_timeout_s": 60})
    figures = episode_metrics(groups, settings, by_type=False)
    expected = {"invalid_actions": 0.25, "repaired_actions": 0.25, "timeout_fraction": 0.5, "episode_steps": 2.0}
    expected |= {"prompt_truncated/turns": 0.5, "prompt_truncated/skills": 0.25, "prompt_truncated/actions": 0.0}
    assert expected.items() <= figures.items()
    calls = ToolCall("a", "{}", result="1"), ToolCall("b", "{}", result="Error", error="no_tool")
    called = episode_metrics([group(tried(replace(step(), calls=calls), step()), tried())], config(), by_type=False)
    assert (called["tools/calls"], called["tools/errors"]) == (1.0, 0.5) and "tools/calls" not in figures
    plain = episode_metrics(groups, config(), by_type=False)
    assert "timeout_fraction" not in plain and not any(name.startswith("prompt_truncated/") for name in plain), (
        "none can be"
    )


def test_a_try_that_failures_leave_alone_has_nothing_to_be_compared_with() -> None:
    broken = tried(stop="error", error="broken")
    groups = [group(tried(step(), reward=10.0), broken), group(tried(step()), tried(step()))]
    kept = select_training_samples(groups, [PLAIN_VOTE] * 2, 2, seed=0)
    assert [len(each.trajectories) for each, _ in kept] == [0, 2]
    (one,) = select_training_samples([group(tried(step(), reward=10.0))], [PLAIN_VOTE], 1, seed=0)
    assert len(one[0].trajectories) == 1, "asked for one by one they are learned from"


# What a run warns of at its end, and what it calls worse.


def course(**figures: list[float]) -> list[dict[str, float]]:
    return [dict(zip(figures, values, strict=True)) for values in zip(*figures.values(), strict=True)]


IDLE: dict[str, list[float]] = {"updates": [0] * 3, "skipped_updates": [0] * 3, "learning_rate": [0.1] * 3}
RISING, WRONG = [0.43, 0.45, 0.5, 0.6, 0.66, 0.7], [0.0] * 6


@pytest.mark.parametrize(
    ("figures", "named"),
    [
        ({"frac_reward_zero_std": [1.0] * 4, "reward": [0.0] * 4}, "The cold start is too weak"),
        ({"frac_reward_zero_std": [1.0] * 4, "reward": [1.0] * 4}, "gets all of this reward"),
        ({"frac_reward_zero_std": [0.9] * 4, "reward": [0.1] * 4}, ""),
        ({"frac_reward_zero_std": [1.0] * 4, "reward": [0.1] * 4, "advantage/max": [1.0] * 4}, ""),
        ({"frac_reward_zero_std": [1.0] * 3, "reward": [0.0] * 3, "abstained": [1.0, 0.97, 0.94]}, "97% abstained"),
        ({"abstained": [1.0], "completions/clipped_ratio": [0.9]}, "rollout.max_new_tokens"),
        ({"abstained": [0.8]}, ""),
        ({**IDLE, "frac_reward_zero_std": [0.5] * 3}, "No step changed the weights"),
        ({"updates": [0] * 3, "skipped_updates": [0] * 3}, ""),
        ({"invalid_actions": [1.0, 0.9]}, "95%"),
        ({"invalid_actions": [1.0, 0.7]}, ""),
    ],
)
def test_signs_of_trouble_are_warned_of_once_and_their_absence_is_not(
    figures: dict[str, list[float]], named: str
) -> None:
    said = [start + rest for start, rest in early_signs(course(**figures)).items()]
    assert len(said) == bool(named) and named in "".join(said)
    assert not named or late_signs(course(**figures)) == early_signs(course(**figures))


def test_agreement_that_rises_on_wrong_answers_is_warned_of() -> None:
    (text,) = late_signs(course(majority_ratio=RISING, label_accuracy=WRONG)).values()
    assert "0.44 to 0.68" in text
    assert late_signs(course(majority_ratio=RISING, label_accuracy=[0.2] * 6)) == {}
    assert late_signs(course(majority_ratio=[0.5] * 6, label_accuracy=WRONG)) == {}
    assert late_signs(course(majority_ratio=RISING)) == {} == late_signs([]), "without labels nothing can be said"
