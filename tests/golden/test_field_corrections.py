"""Our KL in the reward, importance weights and their metrics against verl's and TRL's own values."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from skill_ttrl.config.rl import KLInRewardConfig
from skill_ttrl.rl.batch import RolloutBatch
from skill_ttrl.rl.kl import KLController, apply_kl_penalty
from skill_ttrl.rl.pack import pack
from tests.golden.field_values import assert_close, cases, tensor
from tests.sampled import flat, padded, sampled_groups

WIDTH = 5
ESTIMATORS: dict[str, Any] = {"kl": "k1", "mse": "k2", "low_var_kl": "k3", "abs": "abs"}


def batch_of(mask_name: str, **fields: str) -> RolloutBatch:
    """A batch with some of the inputs, in float64."""
    batch = pack(sampled_groups(tensor(mask_name)))
    return replace(batch, **{field: flat(batch, tensor(name)) for field, name in fields.items()})


@pytest.mark.parametrize("name", list(cases("verl", "kl_in_reward")))
def test_the_kl_in_the_reward_is_verls(name: str) -> None:
    case = cases("verl", "kl_in_reward")[name]
    asked = case["settings"]
    adaptive = {"target": asked["target_kl"], "horizon": asked["horizon"]} if asked["type"] == "adaptive" else {}
    settings = KLInRewardConfig(coef=asked["kl_coef"], estimator=ESTIMATORS[asked["kl_penalty"]], **adaptive)
    controller = KLController.of(settings)
    batch = batch_of("mask", old_log_probs_F="old_log_probs", ref_log_probs_F="reference_log_probs", scores_F="losses")
    batch, metrics = apply_kl_penalty(batch, controller)
    mask = tensor("mask")
    assert_close(padded(batch, batch.rewards_F, WIDTH), case["values"]["rewards"], name, mask)
    assert_close(controller.coef, case["values"]["coef"], name)
    assert_close(metrics["reward_kl"], case["values"]["metrics"]["actor/reward_kl_penalty"], name)
    assert_close(metrics["reward_kl_coef"], case["values"]["metrics"]["actor/reward_kl_penalty_coeff"], name)


@pytest.mark.parametrize("kind", ["adaptive", "fixed"])
def test_the_kl_coefficient_takes_verls_course(kind: str) -> None:
    case = cases("verl", "controller")[kind]
    asked = case["settings"]
    settings = KLInRewardConfig(coef=asked["coef"], target=asked.get("target"), horizon=asked.get("horizon", 10_000))
    controller = KLController.of(settings)
    course = []
    for current, rollouts in asked.get("steps", [(3.0, 10)]):
        controller.update(current, rollouts)
        course.append(controller.coef)
    assert_close(course, case["values"]["coef"], kind)
