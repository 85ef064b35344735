"""The clipped surrogate of PPO, with a separate upper clip (DAPO) and the dual clip."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from skill_ttrl.rl.losses.aggregate import AggregationMode, Denominators, aggregate, masked_mean
from skill_ttrl.rl.losses.registry import LOSSES

LOG_RATIO_BOUND = 20.0
"""Log-ratios are clamped to this, so that exp never overflows (as verl does)."""


def compute_policy_loss(
    log_probs: Float[Tensor, "N T"],
    old_log_probs: Float[Tensor, "N T"],
    advantages: Float[Tensor, "N T"],
    response_mask: Float[Tensor, "N T"],
    clip_ratio: float = 0.2,
    clip_ratio_high: float | None = None,
    dual_clip: float | None = None,
    loss_agg_mode: AggregationMode = "token-mean",
    denominators: Denominators | None = None,
) -> tuple[Float[Tensor, ""], dict[str, Tensor]]:
    """-min(rho A, clip(rho, 1 - low, 1 + high) A), rho = pi / pi_old (PPO, arXiv 1707.06347, equation 7).

    Where A < 0 and a dual clip c is set, the loss is at most -c A (arXiv 1912.09729, equation 5).

    Args:
        log_probs: Of the policy that learns, with gradient, in nats (N, T).
        old_log_probs: Of the policy that sampled (N, T).
        advantages: (N, T), or (N, 1) for one a sequence.
        response_mask: 1 at trained tokens (N, T).
        clip_ratio: Lower clip, and the upper one where `clip_ratio_high` is None.
        clip_ratio_high: Upper clip (DAPO, arXiv 2503.14476: 0.28).
        dual_clip: c > 1, or None for no bound.
        loss_agg_mode: See `aggregate`.
        denominators: See `aggregate`.

    Returns:
        (loss, info). `info` holds, detached: `clip_fraction` (share of tokens where the clip decides, either one),
        `approx_kl` (mean of rho - 1 - log rho, at least 0, nats), `ratio_mean` and `ratio_max`.
    """
    high = clip_ratio if clip_ratio_high is None else clip_ratio_high
    log_ratio = (log_probs - old_log_probs).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    ratio = log_ratio.exp()
    plain = -advantages * ratio
    bounded = -advantages * ratio.clamp(1.0 - clip_ratio, 1.0 + high)
    loss = torch.maximum(plain, bounded)
    decided = bounded > plain
    if dual_clip is not None:
        ceiling = -advantages * dual_clip
        beyond = (advantages < 0) & (loss > ceiling)
        loss = torch.where(beyond, ceiling.expand_as(loss), loss)
        decided = decided | beyond
    with torch.no_grad():
        info = {
            "clip_fraction": masked_mean(decided.to(loss.dtype), response_mask),
            "approx_kl": masked_mean(ratio - 1.0 - log_ratio, response_mask),
            "ratio_mean": masked_mean(ratio, response_mask),
            "ratio_max": (ratio * response_mask).max(),
        }
    return aggregate(loss, response_mask, loss_agg_mode, denominators), info


LOSSES.register("ppo_clip")(compute_policy_loss)
