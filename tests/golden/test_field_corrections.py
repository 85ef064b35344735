"""Our KL in the reward, importance weights and their metrics against verl's and TRL's own values."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from skill_ttrl.config.rl import KLInRewardConfig, RejectionConfig, RolloutCorrectionConfig
from skill_ttrl.rl.batch import RolloutBatch
from skill_ttrl.rl.correction import PaddedSequences, corrected, far_off_policy
from skill_ttrl.rl.kl import KLController, apply_kl_penalty
from skill_ttrl.rl.losses import Denominators, LossInputs, aggregate, build_loss
from skill_ttrl.rl.pack import pack
from tests.golden.field_values import assert_close, cases, given, tensor
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


def of_verl(asked: dict[str, Any]) -> tuple[str | None, RolloutCorrectionConfig]:
    """Our correction for verl's settings."""
    level, bounds = asked.get("rollout_is"), str(asked.get("rollout_is_threshold", "2.0"))
    low, icepop, high = bounds.rpartition("_")
    reject = None
    if "rollout_rs" in asked:
        lowest, _, highest = asked["rollout_rs_threshold"].rpartition("_")
        reject = RejectionConfig(
            statistic=asked["rollout_rs"], low=float(lowest) if lowest else None, high=float(highest)
        )
    settings = RolloutCorrectionConfig(
        threshold=float(high),
        threshold_low=float(low) if icepop else None,
        batch_normalize=asked.get("rollout_is_batch_normalize", False),
        reject=reject,
    )
    return None if level is None else f"{level}_{'mask' if icepop else 'truncate'}", settings


@pytest.mark.parametrize("name", list(cases("verl", "correction")))
def test_corrections_and_their_metrics_are_verls(name: str) -> None:
    case = cases("verl", "correction")[name]
    kind, settings = of_verl(case["settings"])
    batch = batch_of(
        case["inputs"]["response_mask"], old_log_probs_F="old_log_probs", sampler_log_probs_F="sampler_log_probs"
    )
    found, metrics = corrected(batch, kind, settings)
    assert found.weights_F is not None
    mask = given(case)["response_mask"]
    values = case["values"]
    # A deliberate difference: what verl rejects leaves its mask, and so the means; ours has the weight 0 and stays in them.
    theirs = torch.as_tensor(values.get("weights", values["mask"]))
    assert_close(padded(found, found.weights_F, WIDTH), theirs, name, mask)
    without = "empty_row" in name  # verl's means over sequences count those without a token
    compared = 0
    for metric, value in values["metrics"].items():
        ours = metrics.get(f"rollout_corr/{metric}")
        of_sequences = "ppl" in metric or "seq" in metric or "fraction" in metric
        if ours is not None and not (without and of_sequences):
            assert_close(ours, value, f"{name}: {metric}")
            compared += 1
    assert compared >= (3 if without else 9)


@pytest.mark.parametrize("name", list(cases("trl", "correction")))
def test_corrections_are_trls(name: str) -> None:
    case = cases("trl", "correction")[name]
    asked = case["settings"]
    low = 0.0 if asked["min"] is None else asked["min"]
    settings = RolloutCorrectionConfig(threshold=asked["max"], threshold_low=low)
    batch = batch_of("mask", old_log_probs_F="old_log_probs", sampler_log_probs_F="sampler_log_probs")
    found, metrics = corrected(batch, asked["mode"], settings)
    assert found.weights_F is not None
    mask = given(case)["mask"]
    assert_close(
        padded(found, found.weights_F, WIDTH), torch.as_tensor(case["values"]["weights"]).expand_as(mask), name, mask
    )
    theirs = case["values"]["metrics"]
    for ending in ("mean", "max"):
        assert_close(
            metrics[f"sampling/logp_difference/{ending}"], theirs[f"sampling/sampling_logp_difference/{ending}"], name
        )


@pytest.mark.parametrize("name", ["off_policy_mask", "off_policy_mask/empty_row"])
def test_the_off_policy_mask_is_trls(name: str) -> None:
    case = cases("trl", "loss")[name]
    named = given(case)
    log_probs, old, mask = named["log_probs"].requires_grad_(), named["old_log_probs"], named["mask"]
    advantages = named["advantages"].expand_as(mask)
    loss_N_R, _ = build_loss({"type": "ppo_clip", "dual_clip": None, "clip_ratio_high": 0.28})(
        LossInputs(log_probs, old, advantages, mask, old)
    )
    threshold = case["settings"]["off_policy_mask_threshold"]
    far = far_off_policy((log_probs - old).detach(), advantages, PaddedSequences(mask), threshold)
    whole = Denominators(float(mask.sum()), float(len(mask)), 12.0)
    loss = aggregate(loss_N_R * ~far, mask, "token-mean", whole)
    (gradient,) = torch.autograd.grad(loss, log_probs)
    assert far.any()
    assert_close(loss, case["values"]["loss"], name)
    assert_close(gradient, case["values"]["gradient"], name)
