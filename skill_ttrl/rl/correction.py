"""Importance-sampling corrections for a rollout backend whose log-probs are not the learner's own.

An engine computes the same weights with other kernels, in another precision or one update late, so tokens come from a
distribution pi_sampler that is near to the learner's pi_old and not equal to it. With a correction the learner scores the
batch itself before it learns from it: its own log-probs are the denominators of the policy ratio, and each token's loss
is weighted by what separates the two.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from skill_ttrl.config import RLConfig
from skill_ttrl.errors import ConfigError, did_you_mean
from skill_ttrl.rl.batch import RolloutBatch

CORRECTIONS = ("token_truncate", "token_mask")
LOG_WEIGHT_BOUND = 20.0


def choose_correction(rl: RLConfig, *, sampler_is_learner: bool) -> str | None:
    """The correction that `rl.rollout_correction` means; None for none. `auto` needs none where the learner's own model samples.

    Raises:
        ConfigError: there is no such correction.
    """
    kind = rl.rollout_correction.type
    if kind == "auto":
        return None if sampler_is_learner else "token_truncate"
    if kind == "none":
        return None
    if kind not in CORRECTIONS:
        known = ("auto", "none", *CORRECTIONS)
        raise ConfigError(f"Unknown rl.rollout_correction.type {kind!r}.{did_you_mean(kind, known)}")
    return kind


def corrected(batch: RolloutBatch, kind: str, threshold: float) -> tuple[RolloutBatch, dict[str, float]]:
    """Weight each trained token, and measure the gap between learner and sampler.

    `token_truncate`: w = min(pi_old / pi_sampler, threshold), truncated importance sampling (Ionides 2008; for sampling engines
    Yao et al. 2025, "Your efficient RL framework secretly brings you off-policy RL training"). `token_mask`: w is
    pi_old / pi_sampler within [1 / threshold, threshold] and 0 outside (IcePop, Ling team 2025).

    Args:
        batch: With `old_log_probs_F` of the learner itself (`Learner.score`).
        kind: Which correction.
        threshold: Largest weight, above 1.

    Returns:
        (batch, metrics). The metrics, over trained tokens: `sampler_gap` and `sampler_gap_max` (absolute difference of the
        log-probs, nats), `sampler_kl` (estimate k3 of KL(pi_sampler || pi_old), nats), `sampler_weight` (mean weight),
        `sampler_capped` (share of tokens outside the bounds).
    """
    trained = batch.trained_F
    if not bool(trained.any()):
        return batch, {}
    weights_F = torch.ones_like(batch.old_log_probs_F)
    difference_K = (batch.old_log_probs_F - batch.sampler_log_probs_F)[trained]
    weights_F[trained], metrics = _token_weights(difference_K, kind, threshold)
    return replace(batch, weights_F=weights_F), metrics


def _token_weights(
    difference_K: Float[Tensor, " K"], kind: str, threshold: float
) -> tuple[Float[Tensor, " K"], dict[str, float]]:
    """Weights from log pi_old - log pi_sampler, and the metrics of `corrected`."""
    log_weight = difference_K.clamp(-LOG_WEIGHT_BOUND, LOG_WEIGHT_BOUND)
    ratio = log_weight.exp()
    if kind == "token_truncate":
        outside, weight = ratio > threshold, ratio.clamp(max=threshold)
    else:
        outside = (ratio > threshold) | (ratio < 1 / threshold)
        weight = ratio.masked_fill(outside, 0.0)
    return weight, {
        "sampler_gap": float(log_weight.abs().mean()),
        "sampler_gap_max": float(log_weight.abs().max()),
        "sampler_kl": float((ratio - 1 - log_weight).mean()),
        "sampler_weight": float(weight.mean()),
        "sampler_capped": float(outside.float().mean()),
    }
