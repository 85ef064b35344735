"""A bonus for staying undecided."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from skill_ttrl.rl.losses.aggregate import AggregationMode, Denominators, aggregate


def compute_entropy_bonus(
    entropy: Float[Tensor, "N T"],
    mask: Float[Tensor, "N T"],
    coef: float,
    loss_agg_mode: AggregationMode = "token-mean",
    denominators: Denominators | None = None,
) -> Float[Tensor, ""]:
    """The loss term -coef * H: adding it to a loss raises the entropy.

    Args:
        entropy: Of the policy's distribution at each token, in nats (N, T).
        mask: 1 at trained tokens (N, T).
        coef: Weight, at least 0.
        loss_agg_mode: See `aggregate`.
        denominators: See `aggregate`.
    """
    return -coef * aggregate(entropy, mask, loss_agg_mode, denominators)
