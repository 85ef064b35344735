"""Our value loss and GAE with a critic's values against verl's own."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from skill_ttrl.config import RLConfig
from skill_ttrl.rl.algorithms import ALGORITHMS, TrainingSamples, whiten_advantages
from skill_ttrl.rl.batch import pack
from skill_ttrl.rl.critic import compute_value_loss
from skill_ttrl.rl.learner import UpdateRule
from tests.golden.field_values import assert_close, cases, given, tensor
from tests.sampled import flat, padded, sampled_groups

WIDTH = 5


@pytest.mark.parametrize("name", sorted(cases("verl", "value")))
def test_the_value_loss_is_verls(name: str) -> None:
    case = cases("verl", "value")[name]
    named, settings = given(case), case["settings"]
    predicted = named["vpreds"].requires_grad_()
    loss, share = compute_value_loss(
        predicted,
        named["returns"],
        named["values"],
        named["response_mask"],
        settings["cliprange_value"],
        settings["loss_agg_mode"],
    )
    (gradient,) = torch.autograd.grad(loss, predicted)
    assert_close(loss, case["values"]["loss"], name)
    assert_close(share, case["values"]["clip_fraction"], name)
    assert_close(gradient, case["values"]["gradient"], name)


@pytest.mark.parametrize("name", [name for name in cases("verl", "advantage") if name.startswith("gae/")])
@pytest.mark.parametrize("algorithm", ["gae", "ppo"])
def test_gae_and_its_returns_are_verls(algorithm: str, name: str) -> None:
    case = cases("verl", "advantage")[name]
    named, mask = given(case), tensor("response_mask")
    groups = sampled_groups(mask, tensor("rewards"), tensor("groups"))
    batch = pack(groups)
    batch = replace(
        batch, rewards_F=flat(batch, named["token_level_rewards"] * mask), values_F=flat(batch, named["values"] * mask)
    )
    brought = dict(ALGORITHMS.get(algorithm).defaults)
    rule = UpdateRule(RLConfig(algorithm={"type": algorithm, **case["settings"]}, **brought), sampler_is_learner=True)
    found, _ = rule.estimate(TrainingSamples(groups, batch=batch), batch)
    assert found.returns_F is not None
    assert_close(padded(found, found.advantages_F, WIDTH), case["values"]["advantages"], name, mask)
    assert_close(padded(found, found.returns_F, WIDTH), case["values"]["returns"], name, mask)


def test_whitening_is_verls() -> None:
    values, mask = tensor("values"), tensor("response_mask")
    assert_close(whiten_advantages(values, mask), cases("verl", "whiten")[""]["values"]["values"], "whiten", mask)
