"""Corrections for a rollout backend whose log-probs are not the learner's own.

An engine computes the same weights with other kernels, in another precision or some updates late, so tokens come from a
distribution pi_sampler that is near to the learner's pi_old and not equal to it. There are two ways:

- With rescoring (`corrected`) the learner scores the batch itself before it learns from it. Its own log-probs are the denominators of
  the policy ratio, and each token's loss is weighted by what separates the two (verl's decoupled mode, TRL).
- Without (`UpdateCorrection`) the policy ratio is taken against the sampler, which costs no forward pass, and what is too far away is
  left out as the update sees it (verl's bypass mode, prime-rl).

Weights and masks are the same functions in both.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from skill_ttrl.config import RLConfig
from skill_ttrl.config.rl import RejectionConfig, RolloutCorrectionConfig
from skill_ttrl.errors import ConfigError, did_you_mean
from skill_ttrl.rl.batch import RolloutBatch
from skill_ttrl.rl.losses import masked_mean


@dataclass(frozen=True)
class FlatSequences:
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

    def sum(self, values: Float[Tensor, " K"]) -> Float[Tensor, " K"]:
        """Sum over each token's sequence, at each of its tokens."""
        return self.sums_N(values)[self.sequence_K]

    def mean(self, values: Float[Tensor, " K"]) -> Float[Tensor, " K"]:
        """Mean over each token's sequence, at each of its tokens."""
        return self.sum(values) / self.counts_N[self.sequence_K]

    def max(self, values: Float[Tensor, " K"]) -> Float[Tensor, " K"]:
        """Maximum over each token's sequence, at each of its tokens."""
        found_N = values.new_full((len(self.counts_N),), -torch.inf)
        return found_N.scatter_reduce(0, self.sequence_K, values, "amax")[self.sequence_K]


@dataclass(frozen=True)
class PaddedSequences:
    """Rows of N sequences, padded to R tokens."""

    mask_N_R: Float[Tensor, "N R"]
    """1 at tokens that count."""

    def sum(self, values: Float[Tensor, "N R"]) -> Float[Tensor, "N R"]:
        """Sum over each token's sequence, at each of its tokens."""
        return (values * self.mask_N_R).sum(dim=1, keepdim=True).expand_as(values)

    def mean(self, values: Float[Tensor, "N R"]) -> Float[Tensor, "N R"]:
        """Mean over each token's sequence, at each of its tokens."""
        return self.sum(values) / self.mask_N_R.sum(dim=1, keepdim=True).clamp(min=1)

    def max(self, values: Float[Tensor, "N R"]) -> Float[Tensor, "N R"]:
        """Maximum over each token's sequence, at each of its tokens."""
        inside = values.masked_fill(self.mask_N_R == 0, -torch.inf)
        return inside.amax(dim=1, keepdim=True).expand_as(values)


Sequences = FlatSequences | PaddedSequences
LOG_WEIGHT_BOUND = 20.0
"""Log-weights are clamped to this before exp (verl)."""


@dataclass(frozen=True, slots=True)
class WeightRule:
    """How the ratio of a token, or of its sequence, becomes its weight."""

    level: Literal["token", "product", "geometric"]
    """Ratio of the token; of its sequence, the product of its tokens' ratios; the geometric mean of these."""
    mask: bool
    """A ratio outside the bounds gives the weight 0; else it is clamped to them."""
    low: float
    high: float


def weight_rule(kind: str, settings: RolloutCorrectionConfig) -> WeightRule:
    """Read the rule of a correction: `token_truncate`, `token_mask`, `sequence_truncate`, `sequence_mask` or `icepop`."""
    mask = kind in ("token_mask", "sequence_mask", "icepop")
    high = settings.threshold or (5.0 if kind == "icepop" else 2.0)
    low = settings.threshold_low
    if low is None:
        low = 0.5 if kind == "icepop" else 1.0 / high if mask else 0.0
    return WeightRule(settings.sequence_ratio if kind.startswith("sequence") else "token", mask, low, high)


def importance_weights(
    log_ratio: Float[Tensor, ...], sequences: Sequences, rule: WeightRule
) -> tuple[Float[Tensor, ...], Float[Tensor, ...]]:
    """Weight of each token, and the ratio that it comes from.

    Truncated importance sampling (Ionides 2008; for sampling engines Yao et al. 2025, "Your efficient RL framework secretly brings you
    off-policy RL training"), masked importance sampling ("When speed kills stability", Liu et al. 2025) and IcePop (Ling team 2025:
    `token` with a mask).

    Args:
        log_ratio: log pi_old - log pi_sampler of each token, in nats.
        sequences: Which tokens are of one sequence.
        rule: What becomes of the ratio.
    """
    match rule.level:
        case "token":
            log_weight = log_ratio
        case "product":
            log_weight = sequences.sum(log_ratio)
        case "geometric":
            log_weight = sequences.mean(log_ratio)
    ratio = log_weight.clamp(-LOG_WEIGHT_BOUND, LOG_WEIGHT_BOUND).exp()
    if rule.mask:
        return ratio.masked_fill((ratio < rule.low) | (ratio > rule.high), 0.0), ratio
    return ratio.clamp(rule.low, rule.high), ratio


def kept_tokens(log_ratio: Float[Tensor, ...], sequences: Sequences, rejection: RejectionConfig) -> Bool[Tensor, ...]:
    """The tokens that a rejection leaves: those whose divergence, or their sequence's, is within the bounds (verl: `rollout_rs`).

    With r = pi_old / pi_sampler: k1 = -log r, bounded as the ratio e^k1; k2 = (log r)^2 / 2; k3 = r - 1 - log r.
    """
    level, _, estimator = rejection.statistic.rpartition("_")
    log_ratio = log_ratio.clamp(-LOG_WEIGHT_BOUND, LOG_WEIGHT_BOUND)
    match estimator:
        case "k1":
            values = -log_ratio
        case "k2":
            values = 0.5 * log_ratio.square()
        case _:
            values = log_ratio.exp() - 1.0 - log_ratio
    match level:
        case "seq_sum":
            values = sequences.sum(values)
        case "seq_mean":
            values = sequences.mean(values)
        case "seq_max":
            values = sequences.max(values)
        case _:
            pass
    if estimator != "k1":
        return values <= rejection.high
    low = 1.0 / rejection.high if rejection.low is None else rejection.low
    ratio = values.exp()
    return (ratio >= low) & (ratio <= rejection.high)


def far_off_policy(
    log_ratio: Float[Tensor, "N R"],
    advantages: Float[Tensor, "N R"],
    sequences: Sequences,
    threshold: float,
) -> Bool[Tensor, "N R"]:
    """Tokens with a negative advantage in sequences whose mean log pi_sampler - log pi is above the threshold (DeepSeek-V3.2, equation 9)."""
    return (advantages < 0) & (sequences.mean(-log_ratio) > threshold)


def effective_sample_size(weights_K: Float[Tensor, " K"]) -> float:
    """(sum w)^2 / (K sum w^2), in (0, 1]: the share of the sample that is left; 0 where all weights are 0."""
    square = float(weights_K.double().square().mean())
    return float(weights_K.double().mean()) ** 2 / square if square > 0 else 0.0


def normalized(weights_K: Float[Tensor, " K"], sequences: Sequences, rule: WeightRule) -> tuple[Tensor, float]:
    """Weights divided by their mean, and that mean: over tokens, or where sequences have weights over sequences (verl)."""
    share = torch.ones_like(weights_K) if rule.level == "token" else 1.0 / sequences.sum(torch.ones_like(weights_K))
    mean = float((weights_K * share).sum() / share.sum())
    return (weights_K / mean, mean) if mean > 1e-8 else (weights_K, 1.0)


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
        batch: With `old_log_probs_F` of the learner itself (`LocalLearner.score`).
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


class UpdateCorrection:
    """Weights of the tokens of a micro-batch.

    Args:
        settings: `rl.rollout_correction`.
        loss_has_ratio: The loss weighs its gradient by the policy ratio.
    """

    def __init__(self, settings: RolloutCorrectionConfig, *, loss_has_ratio: bool) -> None:
        self.settings = settings
        bypass = not settings.rescore
        self._rule = weight_rule(settings.type, settings) if bypass and settings.type in CORRECTIONS else None
        self._reject = settings.reject if bypass else None
        self._measures = bypass
        self._loss_has_ratio = loss_has_ratio

    @property
    def needed(self) -> bool:
        """True if there is anything to do in the update."""
        return self._measures or self.settings.off_policy_kl is not None

    @torch.no_grad()
    def __call__(
        self,
        log_probs: Float[Tensor, "N R"],
        sampler_log_probs: Float[Tensor, "N R"],
        advantages: Float[Tensor, "N R"],
        mask: Float[Tensor, "N R"],
    ) -> tuple[Float[Tensor, "N R"], dict[str, Tensor]]:
        """(weights, metrics) of a micro-batch.

        The metrics are means over its trained tokens, with verl's prefix: `kl`, `k3_kl` and `chi2_token` of the policy against the
        sampler, `rollout_is_mean` and `rollout_is_square` of the weights (from which the effective sample size is computed),
        `rollout_rs_masked_fraction` and `off_policy_masked_fraction`.
        """
        log_ratio = (log_probs - sampler_log_probs) * mask
        sequences, weights = PaddedSequences(mask), mask
        metrics: dict[str, Tensor] = {}
        if self._measures:
            bounded = log_ratio.clamp(-LOG_WEIGHT_BOUND, LOG_WEIGHT_BOUND)
            ratio = bounded.exp()
            metrics = {"kl": -log_ratio, "k3_kl": ratio - 1.0 - bounded, "chi2_token": ratio.square() - 1.0}
        if self._rule is not None:
            found, _ = importance_weights(log_ratio, sequences, self._rule)
            weights = weights * ((found > 0).to(mask.dtype) if self._loss_has_ratio else found)
            metrics |= {"rollout_is_mean": found, "rollout_is_square": found.square()}
        if self._reject is not None:
            within = kept_tokens(log_ratio, sequences, self._reject)
            weights = weights * within
            metrics["rollout_rs_masked_fraction"] = 1.0 - within.to(mask.dtype)
        if self.settings.off_policy_kl is not None:
            far = far_off_policy(log_ratio, advantages, sequences, self.settings.off_policy_kl)
            weights = weights * ~far
            metrics["off_policy_masked_fraction"] = far.to(mask.dtype)
        return weights, {f"{PREFIX}{name}": masked_mean(value, mask) for name, value in metrics.items()}


def with_sample_size(metrics: dict[str, float]) -> dict[str, float]:
    """Put the effective sample size in the place of the weights' mean square, over the whole update."""
    square = metrics.pop(f"{PREFIX}rollout_is_square", None)
    if square:
        metrics[f"{PREFIX}rollout_is_eff_sample_size"] = metrics[f"{PREFIX}rollout_is_mean"] ** 2 / square
    return metrics
