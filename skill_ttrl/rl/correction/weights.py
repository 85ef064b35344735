"""Importance weights and rejection of tokens, from log pi_old - log pi_sampler of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from skill_ttrl.config.rl import RejectionConfig, RolloutCorrectionConfig
from skill_ttrl.rl.correction.sequences import Sequences

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
