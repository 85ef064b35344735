"""Corrections whose ratio is taken against the sampler: what the update leaves out, and what it costs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from torch import Tensor

from skill_ttrl.config import RLConfig
from skill_ttrl.config.rl import RolloutCorrectionConfig
from skill_ttrl.errors import ConfigError
from skill_ttrl.metrics import unregistered
from skill_ttrl.rl.batch import RolloutBatch
from skill_ttrl.rl.checks import check_correction
from skill_ttrl.rl.correction import FlatSequences, PaddedSequences, UpdateCorrection, importance_weights, weight_rule
from skill_ttrl.rl.learn import UpdateRule
from skill_ttrl.rl.learner import LocalLearner
from skill_ttrl.rl.policy import Policy
from skill_ttrl.types import Group, VoteResult

VOTES = [VoteResult(None, 0.0, (False,) * 4)] * 3
LOG_RATIO = torch.tensor([[0.5, -0.5, 1.5], [0.2, 0.1, 0.0]], dtype=torch.float64)
MASK = torch.tensor([[1.0, 1.0, 1.0], [1.0, 1.0, 0.0]], dtype=torch.float64)


def settings(**changes: Any) -> RLConfig:
    plain = {"prompts_per_step": 3, "mini_batch_size": None, "kl_coef": 0.0, "warmup_steps": 0, "learning_rate": 1e-2}
    return RLConfig.model_validate(plain | changes)


@pytest.mark.parametrize("ratio", ["product", "geometric"])
def test_a_sequence_has_one_weight_flat_or_padded(ratio: Any) -> None:
    rule = weight_rule("sequence_mask", RolloutCorrectionConfig(threshold=4.0, sequence_ratio=ratio))
    padded, _ = importance_weights(LOG_RATIO, PaddedSequences(MASK), rule)
    flat, _ = importance_weights(LOG_RATIO[MASK.bool()], FlatSequences(torch.tensor([0, 0, 0, 1, 1])), rule)
    torch.testing.assert_close(padded[MASK.bool()], flat)
    # Sums 1.5 and 0.3, means 0.5 and 0.15; e^1.5 = 4.48 is above 4.
    expected = [0.0, math.exp(0.3)] if ratio == "product" else [math.exp(0.5), math.exp(0.15)]
    assert padded[:, 0].tolist() == pytest.approx(expected)


def in_update(
    loss_has_ratio: bool, advantages: Tensor | None = None, **changes: Any
) -> tuple[Tensor, dict[str, float]]:
    correction = UpdateCorrection(RolloutCorrectionConfig(**changes), loss_has_ratio=loss_has_ratio)
    given = torch.ones_like(MASK) if advantages is None else advantages
    weights, metrics = correction(LOG_RATIO - 2.0, torch.full_like(LOG_RATIO, -2.0), given, MASK)
    return weights, {name: float(value) for name, value in metrics.items()}


def test_a_loss_with_a_ratio_is_masked_and_one_without_is_weighted() -> None:
    masked, metrics = in_update(True, type="icepop", threshold=4.0, rescore=False)
    assert masked.tolist() == [[1.0, 1.0, 0.0], [1.0, 1.0, 0.0]]
    weighted, _ = in_update(False, type="icepop", threshold=4.0, rescore=False)
    expected = (LOG_RATIO.exp() * MASK).masked_fill(math.log(4) < LOG_RATIO, 0.0)
    torch.testing.assert_close(weighted, expected)
    assert metrics["rollout_corr/kl"] == pytest.approx(-1.8 / 5)
    assert metrics["rollout_corr/chi2_token"] == pytest.approx(float(((2 * LOG_RATIO).exp() * MASK).sum()) / 5 - 1)


def test_without_rescoring_no_forward_pass_is_added_and_the_gradient_is_that_of_the_ratio(
    make_policy: Callable[..., Policy], make_groups: Callable[..., list[Group]], accelerator: Accelerator
) -> None:
    groups = [group.with_rewards([1.0, 0.0, 1.0, 1.0]) for group in make_groups()]
    passes: dict[bool, int] = {}
    metrics: dict[bool, dict[str, float]] = {}
    for rescore in (True, False):
        config = settings(
            rollout_correction={"type": "token_mask", "threshold": 50.0, "rescore": rescore}, micro_batch_size=100
        )
        policy = make_policy()
        counted: list[int] = []
        policy.model.model.register_forward_hook(lambda *given, counted=counted: counted.append(1))
        learner = LocalLearner(policy, config, accelerator, total_steps=1)
        rule = UpdateRule(config, sampler_is_learner=False)
        metrics[rescore] = rule(learner, groups, VOTES, step=0, seed=0, temperature=1.0)
        passes[rescore] = len(counted)
        assert not unregistered(metrics[rescore])
    assert passes[True] == passes[False] + 1
    shared = {
        "rollout_corr/kl",
        "rollout_corr/k3_kl",
        "rollout_corr/chi2_token",
        "rollout_corr/rollout_is_eff_sample_size",
    }
    for name in shared:
        assert metrics[False][name] == pytest.approx(metrics[True][name], rel=1e-3), name
    assert "rollout_corr/rollout_is_square" not in metrics[False]
    # With weights rescoring gives ratio 1 times the weight; without, the loss's own ratio, which is clipped.
    assert metrics[True]["ratio_mean"] == pytest.approx(1.0, abs=1e-4) != metrics[False]["ratio_mean"]


def test_masked_and_rejected_tokens_have_no_gradient(
    make_policy: Callable[..., Policy], make_batch: Callable[..., RolloutBatch], accelerator: Accelerator
) -> None:
    batch = make_batch(advantages=[1.0] * 12)
    far = batch.sampler_log_probs_F - 9.0 * batch.trained_F
    batch = replace(batch, old_log_probs_F=far, sampler_log_probs_F=far)
    for correction in ({"type": "icepop"}, {"reject": {"statistic": "seq_max_k2", "high": 1.0}}):
        config = settings(rollout_correction=correction | {"rescore": False}, loss="reinforce")
        learner = LocalLearner(make_policy(), config, accelerator, total_steps=1)
        found = learner.update(batch, step=0, seed=0, temperature=1.0)
        assert found["grad_norm"] == 0 and found["updates"] == 1


PLAIN: dict[str, Any] = {
    "backend": "vllm", "sampler_is_learner": False, "gives_log_probs": True, "truncates_sampling": False,
}  # fmt: skip


@pytest.mark.parametrize(
    ("rl", "facts", "words"),
    [
        ({}, {"gives_log_probs": False}, "log-probs"),
        ({}, {"truncates_sampling": True}, "truncated distribution"),
        ({"type": "token_truncate", "rescore": False}, {}, "rescore=false"),
        ({"type": "token_mask", "rescore": False, "batch_normalize": True}, {}, "batch_normalize"),
    ],
)
def test_corrections_without_sense_are_refused(rl: Any, facts: Any, words: str) -> None:
    config = RLConfig.model_validate({"rollout_correction": rl})
    with pytest.raises(ConfigError, match=words):
        check_correction(config, **PLAIN | facts)


@pytest.mark.parametrize(
    ("correction", "words"),
    [
        ({"threshold": 0.4, "threshold_low": 0.5}, "must be below threshold"),
        ({"type": "icepop", "threshold_low": 6.0}, r"below threshold \(5\)"),
        ({"reject": {"statistic": "token_k3", "low": 0.1}}, "has no lower bound"),
        ({"reject": {"statistic": "token_k1", "high": 0.5}}, "reject"),
        ({"reject": {"statistic": "seq_max_k1"}}, "seq_max_k2"),
    ],
)
def test_bounds_that_leave_nothing_are_refused(correction: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        RLConfig.model_validate({"rollout_correction": correction})
