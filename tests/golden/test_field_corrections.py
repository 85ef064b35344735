"""Our KL in the reward, importance weights and their metrics against verl's and TRL's own values."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from skill_ttrl.rl.batch import RolloutBatch, pack
from skill_ttrl.rl.learner import apply_kl_penalty, corrected
from tests.golden.field_values import assert_close, cases, given, tensor
from tests.sampled import flat, padded, sampled_groups

WIDTH = 5


def batch_of(mask_name: str, **fields: str) -> RolloutBatch:
    """A batch with some of the inputs, in float64."""
    batch = pack(sampled_groups(tensor(mask_name)))
    return replace(batch, **{field: flat(batch, tensor(name)) for field, name in fields.items()})


def test_the_kl_in_the_reward_is_verls() -> None:
    (case,) = cases("verl", "kl_in_reward").values()
    batch = batch_of("mask", old_log_probs_F="old_log_probs", ref_log_probs_F="reference_log_probs", scores_F="losses")
    batch, metrics = apply_kl_penalty(batch, case["settings"]["kl_coef"])
    assert_close(padded(batch, batch.rewards_F, WIDTH), case["values"]["rewards"], "rewards", tensor("mask"))
    assert_close(metrics["reward_kl"], case["values"]["metrics"]["actor/reward_kl_penalty"], "metric")


@pytest.mark.parametrize("name", list(cases("verl", "correction")))
def test_corrections_and_their_metrics_are_verls(name: str) -> None:
    case = cases("verl", "correction")[name]
    batch = batch_of(
        case["inputs"]["response_mask"], old_log_probs_F="old_log_probs", sampler_log_probs_F="sampler_log_probs"
    )
    found, metrics = corrected(batch, case["settings"]["rollout_is_threshold"])
    assert found.weights_F is not None
    mask = given(case)["response_mask"]
    values = case["values"]
    assert_close(padded(found, found.weights_F, WIDTH), torch.as_tensor(values["weights"]), name, mask)
    without = "empty_row" in name  # verl's means over sequences count those without a token
    compared = 0
    for metric, value in values["metrics"].items():
        ours = metrics.get(f"rollout_corr/{metric}")
        of_sequences = "ppl" in metric or "seq" in metric or "fraction" in metric
        if ours is not None and not (without and of_sequences):
            assert_close(ours, value, f"{name}: {metric}")
            compared += 1
    assert compared >= (3 if without else 9)


def test_the_correction_is_trls() -> None:
    ((name, case),) = cases("trl", "correction").items()
    batch = batch_of("mask", old_log_probs_F="old_log_probs", sampler_log_probs_F="sampler_log_probs")
    found, metrics = corrected(batch, case["settings"]["max"])
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
