"""The correction for a rollout backend whose log-probs are not the learner's own.

An engine computes the same weights with other kernels, in another precision or some updates late, so tokens come from a distribution
pi_sampler that is near to the learner's pi_old and not equal to it. The learner then scores the batch itself before it learns from it: its
own log-probs are the denominators of the policy ratio, and each token's loss is weighted by what separates the two (verl's decoupled mode,
TRL): truncated importance sampling (Ionides 2008; for sampling engines Yao et al. 2025, "Your efficient RL framework secretly brings you
off-policy RL training").
"""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from skill_ttrl.config import RLConfig
from skill_ttrl.rl.batch import RolloutBatch

LOG_WEIGHT_BOUND = 20.0
"""Log-weights are clamped to this before exp (verl)."""
LARGEST_WEIGHT = 2.0
"""Importance weights are clamped to this (verl)."""
PREFIX = "rollout_corr/"
"""Begins verl's names of the metrics."""


def corrects(rl: RLConfig, *, sampler_is_learner: bool) -> bool:
    """True if tokens are weighted (`rl.rollout_correction`); `auto` weighs none where the learner's own model samples."""
    return rl.rollout_correction == "token_truncate" or (rl.rollout_correction == "auto" and not sampler_is_learner)


def corrected(batch: RolloutBatch, largest: float = LARGEST_WEIGHT) -> tuple[RolloutBatch, dict[str, float]]:
    """Weight each trained token, and measure the gap between learner and sampler.

    Args:
        batch: With `old_log_probs_F` of the learner itself (`LocalLearner.score`).
        largest: What weights are clamped to.

    Returns:
        (batch, metrics). The metrics, over trained tokens, are those of `mismatch_metrics` and, by verl's names, `rollout_is_mean`,
        `rollout_is_eff_sample_size` ((sum w)^2 / (K sum w^2), in (0, 1]), and `rollout_is_ratio_fraction_high` and `_low` (shares beyond
        the bound and its inverse).
    """
    trained = batch.trained_F
    if not bool(trained.any()):
        return batch, {}
    old_K, sampler_K = batch.old_log_probs_F[trained], batch.sampler_log_probs_F[trained]
    ratio_K = (old_K - sampler_K).clamp(-LOG_WEIGHT_BOUND, LOG_WEIGHT_BOUND).exp()
    weights_K = ratio_K.clamp(0.0, largest)
    found = {
        "rollout_is_mean": float(weights_K.mean()),
        "rollout_is_eff_sample_size": float(weights_K.double().mean()) ** 2 / float(weights_K.double().square().mean()),
        "rollout_is_ratio_fraction_high": float((ratio_K > largest).float().mean()),
        "rollout_is_ratio_fraction_low": float((ratio_K < 1.0 / largest).float().mean()),
    }
    weights_F = torch.ones_like(batch.old_log_probs_F)
    weights_F[trained] = weights_K
    metrics = mismatch_metrics(old_K, sampler_K, torch.unique(batch.item_F[trained], return_inverse=True)[1])
    return replace(batch, weights_F=weights_F), metrics | {f"{PREFIX}{name}": each for name, each in found.items()}


def mismatch_metrics(
    old_K: Float[Tensor, " K"], sampler_K: Float[Tensor, " K"], sequence_K: Int[Tensor, " K"]
) -> dict[str, float]:
    """Measure how far the learner is from the sampler, from log-probs of tokens of these sequences, numbered from 0.

    Returns:
        `sampling/logp_difference/mean` and `/max` (absolute, nats); with verl's prefix `kl` and `k3_kl` (estimates k1 and k3 of
        KL(pi_sampler || pi_old), nats a token), `training_ppl` and `rollout_ppl` (mean perplexity of a sequence), `log_ppl_diff` and
        `log_ppl_abs_diff` (mean over sequences, nats a token), `ppl_ratio`, `chi2_token` and `chi2_seq` (E r^2 - 1 of tokens' and
        sequences' ratios).
    """
    counts_N = torch.bincount(sequence_K)

    def sums_N(values_K: Float[Tensor, " K"]) -> Float[Tensor, " N"]:
        return values_K.new_zeros(len(counts_N)).index_add(0, sequence_K, values_K)

    log_ratio_K = old_K - sampler_K
    bounded_K = log_ratio_K.clamp(-LOG_WEIGHT_BOUND, LOG_WEIGHT_BOUND)
    old_N, sampler_N = sums_N(old_K) / counts_N, sums_N(sampler_K) / counts_N
    product_N = sums_N(log_ratio_K).clamp(-LOG_WEIGHT_BOUND, LOG_WEIGHT_BOUND)
    verl = {
        "kl": -log_ratio_K.mean(),
        "k3_kl": (bounded_K.exp() - bounded_K - 1).mean(),
        "training_ppl": (-old_N).exp().mean(),
        "rollout_ppl": (-sampler_N).exp().mean(),
        "log_ppl_diff": (sampler_N - old_N).mean(),
        "log_ppl_abs_diff": (sampler_N - old_N).abs().mean(),
        "ppl_ratio": (sampler_N - old_N).exp().mean(),
        "chi2_token": (2 * bounded_K).exp().mean() - 1,
        "chi2_seq": (2 * product_N).exp().mean() - 1,
    }
    return {
        "sampling/logp_difference/mean": float(log_ratio_K.abs().mean()),
        "sampling/logp_difference/max": float(log_ratio_K.abs().max()),
        **{f"{PREFIX}{name}": float(value) for name, value in verl.items()},
    }
