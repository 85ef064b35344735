"""Algorithms: options, advantages of rollouts and steps, and combinations that are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from skill_ttrl.config import RLConfig
from skill_ttrl.errors import ConfigError
from skill_ttrl.rl.algorithms import TrainingSamples, build_algorithm
from skill_ttrl.rl.batch import RolloutBatch, pack
from skill_ttrl.rl.learner import UpdateRule, length_penalty, overlong_penalties
from skill_ttrl.types import ActionStatus, Completion, Group, Step, Task, Trajectory, VoteResult
from tests.golden.field_values import cases
from tests.sampled import per_item

VOTES = [VoteResult(None, 0.0, (False,) * 4)] * 3


def step(verdict: ActionStatus | None = "valid") -> Step:
    done = Completion("go", (7,), (-0.5,), "stop")
    return Step("", "go", 0.0, False, False, (1, 2), done, action_status=verdict)


def tried(*steps: Step, reward: float = 0.0) -> Trajectory:
    return Trajectory(Task("t", "env"), steps, None, "terminated", reward)


def batch_of(*tries: Trajectory, **rl: Any) -> RolloutBatch:
    config = RLConfig(**rl)
    groups = [Group(tries[0].task, tries)]
    batch = pack(groups, invalid_action_penalty_coef=config.invalid_action_penalty_coef)
    rule = UpdateRule(config, sampler_is_learner=True)
    return rule.estimate(TrainingSamples(groups, None, config.invalid_action_penalty_coef, batch), batch)[0]


def test_the_penalty_is_taken_off_single_steps() -> None:
    good, bad = tried(step(), step("invalid"), reward=1.0), tried(step("repaired"), reward=0.0)
    batch = batch_of(good, bad, invalid_action_penalty_coef=0.5)
    # Scores 1 0.5 | 0: mean 3/8, variance ((5/8)^2 + (1/8)^2) / 2 + (3/8)^2 = 22/64.
    assert per_item(batch) == pytest.approx([5 / 22**0.5, 1 / 22**0.5, -3 / 22**0.5], abs=1e-5)
    plain = per_item(batch_of(good, bad))
    assert plain == pytest.approx([0.5**0.5, 0.5**0.5, -(0.5**0.5)], abs=1e-5)
    rows = per_item(batch_of(good, bad, algorithm={"level": "step"}))
    assert rows == pytest.approx([(1 / 3) ** 0.5] * 2 + [-2 * (1 / 3) ** 0.5], abs=1e-5)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"type": "grpo", "epsilon": "many"}, "epsilon"),
        ({"type": f"{__name__}:VOTES"}, "is no algorithm"),
    ],
)
def test_an_algorithm_with_wrong_options_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        build_algorithm(options)


def test_the_length_penalty_is_trls_and_that_of_the_longest_response(make_groups: Callable[..., list[Group]]) -> None:
    (case,) = cases("trl", "overlong").values()
    asked = case["settings"]
    found = [length_penalty(n, asked["max_completion_len"], asked["soft_punish_cache"], 1.0) for n in asked["lengths"]]
    assert found == pytest.approx(case["values"]["penalties"])
    (group,) = make_groups(prompts=1, turns=3)
    lengths = [
        max(len(step.completion.token_ids) for step in each.steps if step.completion) for each in group.trajectories
    ]
    # A fifth of the limit, at least a token: the last one alone.
    assert overlong_penalties(group, 0.5, 6) == [-0.5 * (length >= 6) for length in lengths]
