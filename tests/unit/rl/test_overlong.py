"""Overlong responses: DAPO's penalty by hand and as TRL has it, and samples that are taken out of the loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from accelerate import Accelerator

from skill_ttrl.config import RLConfig
from skill_ttrl.config.rl import OverlongConfig
from skill_ttrl.rl.batch import RolloutBatch
from skill_ttrl.rl.learn import UpdateRule, length_penalty, overlong_penalties, truncated_turns
from skill_ttrl.rl.learner import LocalLearner
from skill_ttrl.rl.pack import pack
from skill_ttrl.rl.policy import Policy
from skill_ttrl.types import FinishReason, Group, VoteResult
from tests.golden.field_values import cases

VOTES = [VoteResult(None, 0.0, (False,) * 4)] * 3


def test_the_penalty_is_trls() -> None:
    (case,) = cases("trl", "overlong").values()
    asked = case["settings"]
    found = [length_penalty(n, asked["max_completion_len"], asked["soft_punish_cache"], 1.0) for n in asked["lengths"]]
    assert found == pytest.approx(case["values"]["penalties"])


def cut(group: Group, truncated: set[int]) -> Group:
    """The group, some of whose responses ended at the limit."""

    def ended(place: int) -> Any:
        trajectory = group.trajectories[place]
        (step,) = trajectory.steps
        assert step.completion is not None
        reason: FinishReason = "length" if place in truncated else "stop"
        return replace(trajectory, steps=(replace(step, completion=replace(step.completion, finish_reason=reason)),))

    return replace(group, trajectories=tuple(map(ended, range(len(group.trajectories)))))


def test_a_rollout_is_penalised_by_its_longest_response(make_groups: Callable[..., list[Group]]) -> None:
    (group,) = make_groups(prompts=1, turns=3)
    lengths = [
        max(len(step.completion.token_ids) for step in each.steps if step.completion) for each in group.trajectories
    ]
    found = overlong_penalties(group, OverlongConfig(buffer=4), 6)
    assert found == [-min(max(length - 2, 0) / 4, 1.0) for length in lengths] and min(found) < 0
    # A fifth of the limit, at least a token: the last one alone.
    assert overlong_penalties(group, OverlongConfig(), 6) == [-1.0 * (length >= 6) for length in lengths]


def test_truncated_samples_leave_the_loss_and_not_their_groups_statistics(
    make_policy: Callable[..., Policy], make_groups: Callable[..., list[Group]], accelerator: Accelerator
) -> None:
    groups = [cut(group, {1, 3}).with_rewards([1.0, 0.0, 1.0, 1.0]) for group in make_groups()]
    seen: list[RolloutBatch] = []

    class Watching(LocalLearner):
        def update(self, batch: RolloutBatch, **options: Any) -> dict[str, float]:
            seen.append(batch)
            return super().update(batch, **options)

    for overlong in (None, {"penalty": False, "filter": True}):
        config = RLConfig.model_validate(
            {
                "overlong": overlong,
                "kl_coef": 0.1,
                "prompts_per_step": 3,
                "mini_batch_size": None,
                "micro_batch_size": 1,
            }
        )
        learner = Watching(make_policy(), config, accelerator, total_steps=1)
        metrics = UpdateRule(config, sampler_is_learner=True)(learner, groups, VOTES, step=0, seed=0, temperature=1.0)
    plain, filtered = seen
    truncated_N = truncated_turns(plain, [each for group in groups for each in group.trajectories])
    assert truncated_N.tolist() == [False, True, False, True] * 3 and metrics["filtered_overlong"] == 0.5
    assert torch.equal(filtered.trained_tokens_N > 0, ~truncated_N)
    kept_F = filtered.trained_F
    assert torch.equal(filtered.advantages_F[kept_F], plain.advantages_F[kept_F])
    assert not filtered.advantages_F[~kept_F].any()
    assert metrics["tokens"] == int(kept_F.sum()) and metrics["updates"] == 1


def test_a_batch_of_nothing_but_truncated_samples_moves_nothing(
    make_policy: Callable[..., Policy], make_groups: Callable[..., list[Group]], accelerator: Accelerator
) -> None:
    groups = [cut(group, {0, 1, 2, 3}).with_rewards([1.0, 0.0, 1.0, 1.0]) for group in make_groups()]
    assert len(pack(groups)) == 12
    config = RLConfig.model_validate(
        {
            "overlong": {"filter": True},
            "adaptive_entropy": {"target": 9.0},
            "top_entropy_quantile": 0.5,
            "prompts_per_step": 3,
        }
    )
    learner = LocalLearner(make_policy(), config, accelerator, total_steps=1)
    metrics = UpdateRule(config, sampler_is_learner=True)(learner, groups, VOTES, step=0, seed=0, temperature=1.0)
    assert metrics["updates"] == 0 and "entropy_coef" not in metrics
    assert all(torch.isfinite(torch.tensor(value)) for value in metrics.values())
