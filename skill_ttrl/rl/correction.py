"""Corrections for a rollout backend whose log-probs are not the learner's own.

An engine computes the same weights with other kernels, in another precision or some updates late, so tokens come from a distribution
pi_sampler that is near to the learner's pi_old and not equal to it. The learner then scores the batch itself before it learns from it: its
own log-probs are the denominators of the policy ratio, and each token's loss is weighted by what separates the two (verl's decoupled mode,
TRL).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from skill_ttrl.config import RLConfig
from skill_ttrl.rl.batch import RolloutBatch

LOG_WEIGHT_BOUND = 20.0
"""Log-weights are clamped to this before exp (verl)."""
PREFIX = "rollout_corr/"
"""Begins verl's names of the metrics."""


@dataclass(frozen=True)
class Sequences:
    """K tokens of N sequences, in any order."""

    sequence_K: Int[Tensor, " K"]
    """Sequence of each token, from 0."""

    @cached_property
    def counts_N(self) -> Int[Tensor, " N"]:
        """Tokens of each sequence."""
        return torch.bincount(self.sequence_K)

    def sums_N(self, values_K: Float[Tensor, " K"]) -> Float[Tensor, " N"]:
        """Sum of each sequence."""
        return values_K.new_zeros(len(self.counts_N)).index_add(0, self.sequence_K, values_K)


@dataclass(frozen=True, slots=True)
class WeightRule:
    """How the ratio of a token, or of its sequence, becomes its weight."""

    of_sequence: bool
    """The ratio is that of the token's sequence, the product of its tokens' ratios."""
    mask: bool
    """A ratio outside the bounds gives the weight 0; else it is clamped to them."""
    low: float
    high: float


def weight_rule(rl: RLConfig, *, sampler_is_learner: bool) -> WeightRule | None:
    """The rule that `rl.rollout_correction` means; None for no correction. `auto` needs none where the learner's own model samples."""
    kind = rl.rollout_correction
    if kind == "auto":
        kind = "none" if sampler_is_learner else "token_truncate"
    if kind == "none":
        return None
    high = rl.rollout_is_threshold or (5.0 if kind == "icepop" else 2.0)
    mask = not kind.endswith("truncate")
    low = 0.5 if kind == "icepop" else 1.0 / high if mask else 0.0
    return WeightRule(kind.startswith("sequence"), mask, low, high)


def importance_weights(
    log_ratio_K: Float[Tensor, " K"], sequences: Sequences, rule: WeightRule
) -> tuple[Float[Tensor, " K"], Float[Tensor, " K"]]:
    """Weight of each token, and the ratio that it comes from.

    Truncated importance sampling (Ionides 2008; for sampling engines Yao et al. 2025, "Your efficient RL framework secretly brings you
    off-policy RL training"), masked importance sampling ("When speed kills stability", Liu et al. 2025) and IcePop (Ling team 2025:
    tokens with a mask).

    Args:
        log_ratio_K: log pi_old - log pi_sampler of each token, in nats.
        sequences: Which tokens are of one sequence.
        rule: What becomes of the ratio.
    """
    log_weight_K = sequences.sums_N(log_ratio_K)[sequences.sequence_K] if rule.of_sequence else log_ratio_K
    ratio_K = log_weight_K.clamp(-LOG_WEIGHT_BOUND, LOG_WEIGHT_BOUND).exp()
    if rule.mask:
        return ratio_K.masked_fill((ratio_K < rule.low) | (ratio_K > rule.high), 0.0), ratio_K
    return ratio_K.clamp(rule.low, rule.high), ratio_K


def corrected(batch: RolloutBatch, rule: WeightRule) -> tuple[RolloutBatch, dict[str, float]]:
    """Weight each trained token, and measure the gap between learner and sampler.

    Args:
        batch: With `old_log_probs_F` of the learner itself (`LocalLearner.score`).
        rule: How the ratios become weights.

    Returns:
        (batch, metrics). The metrics, over trained tokens or sequences that have any, are those of `mismatch_metrics` and, by verl's
        names, `rollout_is_mean`, `rollout_is_eff_sample_size` ((sum w)^2 / (K sum w^2), in (0, 1]; 0 where all weights are 0), and
        `rollout_is_ratio_fraction_high` and `_low` (shares beyond the bounds).
    """
    trained = batch.trained_F
    if not bool(trained.any()):
        return batch, {}
    old_K, sampler_K = batch.old_log_probs_F[trained], batch.sampler_log_probs_F[trained]
    sequences = Sequences(torch.unique(batch.item_F[trained], return_inverse=True)[1])
    weights_K, ratio_K = importance_weights(old_K - sampler_K, sequences, rule)
    # A sequence's ratio counts once, as in verl.
    share_K = 1.0 / sequences.counts_N[sequences.sequence_K] if rule.of_sequence else torch.ones_like(ratio_K)
    square = float(weights_K.double().square().mean())
    low = rule.low or 1.0 / rule.high
    found = {
        "rollout_is_mean": float(weights_K.mean()),
        "rollout_is_eff_sample_size": float(weights_K.double().mean()) ** 2 / square if square > 0 else 0.0,
        "rollout_is_ratio_fraction_high": float(((ratio_K > rule.high) * share_K).sum() / share_K.sum()),
        "rollout_is_ratio_fraction_low": float(((ratio_K < low) * share_K).sum() / share_K.sum()),
    }
    weights_F = torch.ones_like(batch.old_log_probs_F)
    weights_F[trained] = weights_K
    metrics = mismatch_metrics(old_K, sampler_K, sequences) | {f"{PREFIX}{name}": each for name, each in found.items()}
    return replace(batch, weights_F=weights_F), metrics


def mismatch_metrics(
    old_K: Float[Tensor, " K"], sampler_K: Float[Tensor, " K"], sequences: Sequences
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
