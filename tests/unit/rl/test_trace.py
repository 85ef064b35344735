"""Which items carried the gradient of an update."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from accelerate import Accelerator

from skill_ttrl.config import RLConfig
from skill_ttrl.rl.batch import RolloutBatch
from skill_ttrl.rl.learn import UpdateRule
from skill_ttrl.rl.learner import LocalLearner
from skill_ttrl.rl.policy import Policy
from skill_ttrl.types import Group
from tests.unit.rl.test_algorithms import VOTES


def settings(**changes: Any) -> RLConfig:
    plain = {"prompts_per_step": 3, "mini_batch_size": None, "kl_coef": 0.0, "warmup_steps": 0, "learning_rate": 1e-9}
    return RLConfig.model_validate({**plain, **changes})


@pytest.mark.parametrize("kl_coef", [0.0, 0.5])
def test_an_items_gradient_is_that_of_the_policy_loss_at_its_log_probs(
    kl_coef: float,
    make_policy: Callable[..., Policy],
    make_batch: Callable[..., RolloutBatch],
    accelerator: Accelerator,
) -> None:
    batch = make_batch(advantages=[2.0, -1.0, 0.0, 0.5] * 3)
    learner = LocalLearner(make_policy(), settings(kl_coef=kl_coef), accelerator, total_steps=1)
    batch = learner.score(batch, temperature=1.0, own=True, reference=kl_coef > 0)
    learner.update(batch, step=0, seed=0, temperature=1.0)
    assert learner.gradients is not None
    # At a ratio of 1 the gradient of token-mean is -A / tokens, whatever KL adds.
    expected = batch.sum_by_item(batch.advantages_F.abs() * batch.trained_F) / batch.trained_F.sum()
    assert torch.allclose(learner.gradients.absolute_S, expected, atol=1e-6)
    assert not learner.gradients.stopped_S.any()


def test_clipped_tokens_carry_nothing_and_are_counted(
    make_policy: Callable[..., Policy], make_batch: Callable[..., RolloutBatch], accelerator: Accelerator
) -> None:
    batch = make_batch(advantages=[1.0] * 12)
    learner = LocalLearner(make_policy(), settings(ppo_epochs=2), accelerator, total_steps=1)
    batch = learner.score(batch, temperature=1.0, own=True, reference=False)
    first = batch.item_F == 0
    # The policy has moved past the clip at the first item's tokens.
    moved = torch.where(first & batch.trained_F, batch.old_log_probs_F - 1.0, batch.old_log_probs_F)
    learner.update(replace(batch, old_log_probs_F=moved), step=0, seed=0, temperature=1.0)
    assert learner.gradients is not None
    stopped = learner.gradients.stopped_S
    assert stopped[0] == 2 * batch.trained_tokens_N[0] and not stopped[1:].any(), "once in each pass"
    assert learner.gradients.absolute_S[0] == 0 and (learner.gradients.absolute_S[1:] > 0).all()


def test_a_record_has_each_steps_share(
    make_policy: Callable[..., Policy], make_groups: Callable[..., list[Group]], accelerator: Accelerator
) -> None:
    groups = [group.with_rewards([1.0, 0.0, 0.0, 0.0]) for group in make_groups(turns=2)]
    rule = UpdateRule(settings(reward="env"), sampler_is_learner=True)
    learner = LocalLearner(make_policy(), settings(), accelerator, total_steps=1)
    rule(learner, groups, VOTES, step=0, seed=0, temperature=1.0)
    assert rule.record is not None
    shares, advantages = rule.record.gradient_shares, rule.record.advantages
    assert [len(row) for row in shares] == [2] * 12 and sum(map(sum, shares)) == pytest.approx(1.0)
    by_reward = [sum(map(sum, shares[at::4])) for at in range(4)]
    assert by_reward[0] > max(by_reward[1:]) and (advantages[0][0] or 0) > 0 > (advantages[1][0] or 0)
    assert all(value >= 0 for row in rule.record.stopped_tokens for value in row)
