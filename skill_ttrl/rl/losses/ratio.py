"""The policy ratio rho = pi / pi_old, and its metrics."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from skill_ttrl.rl.losses.aggregate import masked_mean

LOG_RATIO_BOUND = 20.0
"""Log-ratios are clamped to this, so that exp never overflows (as verl does)."""


def bounded_log_ratio(log_probs: Float[Tensor, "N T"], old_log_probs: Float[Tensor, "N T"]) -> Float[Tensor, "N T"]:
    """Log rho of each token, in nats, within `LOG_RATIO_BOUND`."""
    return (log_probs - old_log_probs).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)


@torch.no_grad()
def ratio_metrics(log_ratio: Float[Tensor, "N T"], mask: Float[Tensor, "N T"]) -> dict[str, Tensor]:
    """`approx_kl` (mean of rho - 1 - log rho, at least 0, nats), `ratio_mean` and `ratio_max`, over the masked tokens."""
    ratio = log_ratio.exp()
    return {
        "approx_kl": masked_mean(ratio - 1.0 - log_ratio, mask),
        "ratio_mean": masked_mean(ratio, mask),
        "ratio_max": (ratio * mask).max(),
    }
