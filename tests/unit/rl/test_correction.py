"""A batch that another sampler drew: the learner's own log-probs, the weight of each token, and the gap between the two."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from torch import Tensor

from skill_ttrl.config import RLConfig, RuntimeConfig
from skill_ttrl.rl.batch import RolloutBatch
from skill_ttrl.rl.device import make_accelerator
from skill_ttrl.rl.learner import LocalLearner, corrected, corrects
from skill_ttrl.rl.micro_batch import lay_out
from skill_ttrl.rl.policy import Policy


def scored(policy: Policy, batch: RolloutBatch, rows: int) -> RolloutBatch:
    settings = RLConfig(micro_batch_size=rows, kl_coef=0.0)
    learner = LocalLearner(policy, settings, make_accelerator(RuntimeConfig(device="cpu")), total_steps=1)
    return learner.score(batch, temperature=1.0, own=True, reference=False)


def as_sampled(batch: RolloutBatch, log_probs: Tensor) -> RolloutBatch:
    return replace(batch, old_log_probs_F=log_probs, sampler_log_probs_F=log_probs)


def sampled_by(policy: Policy, batch: RolloutBatch) -> RolloutBatch:
    """The batch with the log-probs that this policy itself would have sampled with, found item by item."""
    log_probs = batch.old_log_probs_F.clone()
    for item in range(len(batch)):
        alone = lay_out(batch, torch.tensor([item]), 0)
        with torch.no_grad():
            scores = policy.token_logprobs(alone)[0]
        start = int(batch.starts_N[item] + batch.prompt_lengths_N[item])
        log_probs[start : start + int(batch.response_lengths_N[item])] = scores[0]
    return as_sampled(batch, log_probs)


@pytest.mark.parametrize("rows", [1, 3, 100])
def test_a_sampler_that_is_the_learner_has_weight_one_everywhere(
    rows: int, make_policy: Callable[..., Policy], make_batch: Callable[..., RolloutBatch]
) -> None:
    policy = make_policy()
    batch = sampled_by(policy, make_batch())
    found, figures = corrected(scored(policy, batch, rows))
    assert found.weights_F is not None
    assert torch.allclose(found.weights_F, torch.ones_like(found.weights_F), atol=1e-5)
    assert torch.allclose(found.old_log_probs_F, batch.old_log_probs_F, atol=1e-5)
    assert (
        figures["sampling/logp_difference/max"] < 1e-5 and figures["rollout_corr/rollout_is_ratio_fraction_high"] == 0
    )


def test_the_gradient_is_that_of_weighted_advantages(
    make_policy: Callable[..., Policy], make_batch: Callable[..., RolloutBatch], accelerator: Accelerator
) -> None:
    # The learner finds every token twice as likely as the sampler did: the gradient doubles.
    policy = make_policy()
    own = sampled_by(policy, make_batch())
    half = as_sampled(own, own.old_log_probs_F - torch.log(torch.tensor(2.0)) * own.trained_F)
    settings = RLConfig(learning_rate=1e-9, warmup_steps=0, prompts_per_step=3, mini_batch_size=None, kl_coef=0.0)
    settings.grad_clip = 1e9
    norms = []
    for batch in (own, half):
        learner = LocalLearner(make_policy(), settings, accelerator, total_steps=1)
        if batch is half:
            batch, _ = corrected(learner.score(batch, temperature=1.0, own=True, reference=False))
        norms.append(learner.update(batch, step=0, seed=0, temperature=1.0)["grad_norm"])
    assert norms[1] == pytest.approx(2 * norms[0], rel=1e-3)


def test_inserted_tokens_are_neither_scored_nor_counted(
    make_policy: Callable[..., Policy], make_batch: Callable[..., RolloutBatch]
) -> None:
    policy = make_policy()
    batch = sampled_by(policy, make_batch())
    trained = batch.trained_F.clone()
    first = int(trained.nonzero()[0])
    trained[first] = False
    wrong = batch.old_log_probs_F.clone()
    wrong[first] = -99.0
    batch = replace(batch, trained_F=trained, old_log_probs_F=wrong, sampler_log_probs_F=wrong)
    found, figures = corrected(scored(policy, batch, 2))
    assert found.weights_F is not None and float(found.weights_F[first]) == 1.0
    assert figures["sampling/logp_difference/max"] < 1e-5


@pytest.mark.parametrize(
    ("settings", "own_model", "found"),
    [
        ({}, True, False),
        ({}, False, True),
        ({"rollout_correction": "none"}, False, False),
        ({"rollout_correction": "token_truncate"}, True, True),
    ],
)
def test_the_sampler_is_corrected_for_where_it_is_not_the_learner(settings: Any, own_model: bool, found: bool) -> None:
    assert corrects(RLConfig.model_validate(settings), sampler_is_learner=own_model) == found
