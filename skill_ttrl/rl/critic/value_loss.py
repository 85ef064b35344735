"""The clipped loss of a value function, and how much of the returns it explains."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from skill_ttrl.rl.losses import AggregationMode, Denominators, aggregate
from skill_ttrl.rl.losses.aggregate import masked_mean


def clipped_value_loss(
    values: Float[Tensor, "N T"],
    returns: Float[Tensor, "N T"],
    old_values: Float[Tensor, "N T"],
    value_clip: float | None = 0.5,
) -> tuple[Float[Tensor, "N T"], Bool[Tensor, "N T"]]:
    """max((V - R)^2, (clip(V, V_old +- c) - R)^2) / 2 of each token, and where the clip decides it (verl, TRL).

    Args:
        values: Of the critic that learns, with gradient.
        returns: What it learns to predict.
        old_values: Of the critic before this update.
        value_clip: c; None: no clip.
    """
    plain = (values - returns).square()
    if value_clip is None:
        return 0.5 * plain, torch.zeros_like(plain, dtype=torch.bool)
    near = old_values + (values - old_values).clamp(-value_clip, value_clip)
    bounded = (near - returns).square()
    return 0.5 * torch.maximum(plain, bounded), bounded > plain


def compute_value_loss(
    values: Float[Tensor, "N T"],
    returns: Float[Tensor, "N T"],
    old_values: Float[Tensor, "N T"],
    response_mask: Float[Tensor, "N T"],
    value_clip: float | None = 0.5,
    loss_agg_mode: AggregationMode = "token-mean",
    denominators: Denominators | None = None,
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Aggregate `clipped_value_loss` over a batch.

    Args:
        values: Of the critic that learns, with gradient (N, T).
        returns: What it learns to predict (N, T).
        old_values: Of the critic before this update (N, T).
        response_mask: 1 at trained tokens (N, T).
        value_clip: Largest step of a value that the loss rewards; None: no bound.
        loss_agg_mode: See `losses.aggregate`.
        denominators: See `losses.aggregate`.

    Returns:
        (loss, share of the tokens where the clip decides); the second is detached.
    """
    loss, decided = clipped_value_loss(values, returns, old_values, value_clip)
    share = masked_mean(decided.to(loss.dtype), response_mask)
    return aggregate(loss, response_mask, loss_agg_mode, denominators), share


def explained_variance(values: Float[Tensor, " K"], returns: Float[Tensor, " K"]) -> float:
    """1 - Var(R - V) / Var(R): 1 for a perfect critic, 0 for a constant one, below 0 for one that misleads (verl: 1e-5 is added).

    0 for fewer than two tokens.
    """
    if len(returns) < 2:
        return 0.0
    return float(1.0 - (returns - values).double().var() / (returns.double().var() + 1e-5))
