"""The policy ratio rho = pi / pi_old of tokens and of sequences, and its metrics."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

LOG_RATIO_BOUND = 20.0
"""Log-ratios are clamped to this, so that exp never overflows (as verl does)."""


def bounded_log_ratio(log_probs: Float[Tensor, "N T"], old_log_probs: Float[Tensor, "N T"]) -> Float[Tensor, "N T"]:
    """Log rho of each token, in nats, within `LOG_RATIO_BOUND`."""
    return (log_probs - old_log_probs).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)


def sequence_mean(values: Float[Tensor, "N T"], mask: Float[Tensor, "N T"]) -> Float[Tensor, "N 1"]:
    """Mean of each sequence over its masked tokens; 0 where there are none."""
    return (values * mask).sum(dim=1, keepdim=True) / mask.sum(dim=1, keepdim=True).clamp(min=1)


@torch.no_grad()
def ratio_metrics(log_ratio: Float[Tensor, "N T"], mask: Float[Tensor, "N T"]) -> dict[str, Tensor]:
    """`approx_kl` (mean of rho - 1 - log rho, at least 0, nats), `ratio_mean` and `ratio_max`, over the masked tokens."""
    ratio, tokens = log_ratio.exp(), mask.sum().clamp_(min=1)
    masked = ratio * mask
    return {
        "approx_kl": ((ratio - 1.0).sub_(log_ratio).mul_(mask)).sum() / tokens,
        "ratio_mean": masked.sum() / tokens,
        "ratio_max": masked.max(),
    }


@torch.no_grad()
def clip_metrics(
    decided: Bool[Tensor, "N T"],
    ratio: Float[Tensor, "N T"],
    advantages: Float[Tensor, "N T"],
    mask: Float[Tensor, "N T"],
) -> dict[str, Tensor]:
    """Shares of the masked tokens that a clip decides.

    `clip_fraction` is of all; `clip_fraction_low` of those whose ratio is below 1 (TRL: `clip_ratio/low_mean`), `clip_fraction_high` of
    those with a ratio above it and a positive advantage (TRL: `clip_ratio/high_mean`). The rest met the dual clip.
    """
    inside, tokens = decided * mask, mask.sum().clamp_(min=1)
    below = ratio < 1.0
    return {
        "clip_fraction": inside.sum() / tokens,
        "clip_fraction_low": (inside * below).sum() / tokens,
        "clip_fraction_high": (inside * (advantages > 0).logical_and_(~below)).sum() / tokens,
    }
