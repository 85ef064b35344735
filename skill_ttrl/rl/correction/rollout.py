"""Corrections with rescoring: weights of a step's whole batch, once, from the learner's own log-probs."""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from skill_ttrl.config import RLConfig
from skill_ttrl.config.rl import RolloutCorrectionConfig
from skill_ttrl.errors import ConfigError, did_you_mean
from skill_ttrl.rl.batch import RolloutBatch
from skill_ttrl.rl.correction.sequences import FlatSequences
from skill_ttrl.rl.correction.weights import (
    LOG_WEIGHT_BOUND,
    effective_sample_size,
    importance_weights,
    kept_tokens,
    normalized,
    weight_rule,
)

CORRECTIONS = ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask", "icepop")
PREFIX = "rollout_corr/"
"""Begins verl's names of the metrics."""


def choose_correction(rl: RLConfig, *, sampler_is_learner: bool) -> str | None:
    """The correction that `rl.rollout_correction` means; None for none. `auto` needs none where the learner's own model samples, or
    where the policy ratio is taken against the sampler.

    Raises:
        ConfigError: there is no such correction.
    """
    kind, settings = rl.rollout_correction.type, rl.rollout_correction
    if kind == "auto":
        return None if sampler_is_learner or not settings.rescore else "token_truncate"
    if kind == "none":
        return None
    if kind not in CORRECTIONS:
        known = ("auto", "none", *CORRECTIONS)
        raise ConfigError(f"Unknown rl.rollout_correction.type {kind!r}.{did_you_mean(kind, known)}")
    return kind


def corrected(
    batch: RolloutBatch, kind: str | None, settings: RolloutCorrectionConfig
) -> tuple[RolloutBatch, dict[str, float]]:
    """Weight each trained token, and measure the gap between learner and sampler.

    Args:
        batch: With `old_log_probs_F` of the learner itself (`Learner.score`).
        kind: One of `CORRECTIONS`; None measures and rejects only.
        settings: Bounds, normalisation and rejection.

    Returns:
        (batch, metrics). The metrics, over trained tokens or sequences that have any, are those of `mismatch_metrics` and, by verl's
        names, `rollout_is_mean`, `rollout_is_eff_sample_size`, `rollout_is_ratio_fraction_high` and `_low` (shares beyond the bounds),
        `rollout_is_batch_norm_factor`, `rollout_rs_masked_fraction` and `rollout_rs_seq_masked_fraction`.
    """
    trained = batch.trained_F
    if not bool(trained.any()):
        return batch, {}
    old_K, sampler_K = batch.old_log_probs_F[trained], batch.sampler_log_probs_F[trained]
    sequences = FlatSequences(torch.unique(batch.item_F[trained], return_inverse=True)[1])
    log_ratio_K = old_K - sampler_K
    metrics = mismatch_metrics(old_K, sampler_K, sequences)
    weights_K = torch.ones_like(old_K)
    if kind is not None:
        weights_K, found = _weights(log_ratio_K, kind, settings, sequences)
        metrics |= found
    if settings.reject is not None:
        kept_K = kept_tokens(log_ratio_K, sequences, settings.reject)
        weights_K = weights_K * kept_K
        metrics[f"{PREFIX}rollout_rs_masked_fraction"] = float((~kept_K).float().mean())
        metrics[f"{PREFIX}rollout_rs_seq_masked_fraction"] = float(
            (sequences.sums_N((~kept_K).float()) > 0).float().mean()
        )
    weights_F = torch.ones_like(batch.old_log_probs_F)
    weights_F[trained] = weights_K
    return replace(batch, weights_F=weights_F), metrics


def _weights(
    log_ratio_K: Float[Tensor, " K"], kind: str, settings: RolloutCorrectionConfig, sequences: FlatSequences
) -> tuple[Float[Tensor, " K"], dict[str, float]]:
    rule = weight_rule(kind, settings)
    weights_K, ratio_K = importance_weights(log_ratio_K, sequences, rule)
    # A sequence's ratio counts once, as in verl.
    share_K = torch.ones_like(ratio_K) if rule.level == "token" else 1.0 / sequences.sum(torch.ones_like(ratio_K))
    low = rule.low or 1.0 / rule.high
    metrics = {
        "rollout_is_mean": float(weights_K.mean()),
        "rollout_is_eff_sample_size": effective_sample_size(weights_K),
        "rollout_is_ratio_fraction_high": float(((ratio_K > rule.high) * share_K).sum() / share_K.sum()),
        "rollout_is_ratio_fraction_low": float(((ratio_K < low) * share_K).sum() / share_K.sum()),
    }
    if settings.batch_normalize:
        weights_K, metrics["rollout_is_batch_norm_factor"] = normalized(weights_K, sequences, rule)
    return weights_K, {f"{PREFIX}{name}": value for name, value in metrics.items()}


def mismatch_metrics(
    old_K: Float[Tensor, " K"], sampler_K: Float[Tensor, " K"], sequences: FlatSequences
) -> dict[str, float]:
    """Measure how far the learner is from the sampler.

    Returns:
        `sampling/logp_difference/mean` and `/max` (absolute, nats); with verl's prefix `kl` and `k3_kl` (estimates k1 and k3 of
        KL(pi_sampler || pi_old), nats a token), `training_ppl` and `rollout_ppl` (mean perplexity of a sequence), `log_ppl_diff` and
        `log_ppl_abs_diff` (mean over sequences, nats a token), `ppl_ratio`, `chi2_token` and `chi2_seq` (E r^2 - 1 of tokens' and
        sequences' ratios).
    """
    log_ratio_K = old_K - sampler_K
    bounded_K = log_ratio_K.clamp(-LOG_WEIGHT_BOUND, LOG_WEIGHT_BOUND)
    counts_N = sequences.counts_N
    old_N, sampler_N = sequences.sums_N(old_K) / counts_N, sequences.sums_N(sampler_K) / counts_N
    product_N = sequences.sums_N(log_ratio_K).clamp(-LOG_WEIGHT_BOUND, LOG_WEIGHT_BOUND)
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
