"""From a loss at each token to one number, so that parts of a batch add up to the whole; the entropy bonus is such a sum.

The divisors belong to the whole mini-batch (`Denominators`), not to the part at hand: then the losses and gradients of
micro-batches, simply added, are those of the whole, whatever the micro-batch size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, assert_never

from jaxtyping import Float
from torch import Tensor

AggregationMode = Literal["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]


@dataclass(frozen=True, slots=True)
class Denominators:
    """Divisors of the sums, counted over everything that one optimizer step sees."""

    tokens: float
    """Trained tokens."""
    sequences: float
    """Sequences with at least one trained token."""
    horizon: float
    """Longest possible response in tokens (Dr. GRPO's constant; only `seq-mean-token-sum-norm` looks at it)."""

    @classmethod
    def of(cls, mask: Float[Tensor, "N T"]) -> Denominators:
        """Count a batch as a whole; the horizon is the mask's width, as in verl."""
        return cls(float(mask.sum()), float((mask.sum(dim=1) > 0).sum()), float(mask.shape[1]))


def masked_mean(values: Float[Tensor, "N T"], mask: Float[Tensor, "N T"]) -> Float[Tensor, ""]:
    """Mean over the masked tokens; 0 where there are none."""
    return (values * mask).sum() / mask.sum().clamp(min=1)


def aggregate(
    loss_N_T: Float[Tensor, "N T"],
    mask: Float[Tensor, "N T"],
    mode: AggregationMode = "token-mean",
    denominators: Denominators | None = None,
) -> Float[Tensor, ""]:
    """One loss from the losses at the tokens.

    Args:
        loss_N_T: Loss at each token (N, T).
        mask: 1 at trained tokens (N, T). Rows without any do not count as sequences.
        mode: `token-mean` (DAPO, TTRL): mean over all tokens. `seq-mean-token-mean` (GRPO): mean within a sequence,
            then over sequences. `seq-mean-token-sum`: sum within, mean over. `seq-mean-token-sum-norm` (Dr. GRPO, arXiv
            2503.20783): the same, divided by the horizon.
        denominators: Of the whole that this is a part of; None takes this as the whole.
    """
    whole = Denominators.of(mask) if denominators is None else denominators
    sums_N = (loss_N_T * mask).sum(dim=1)
    match mode:
        case "token-mean":
            return sums_N.sum() / max(whole.tokens, 1.0)
        case "seq-mean-token-sum":
            return sums_N.sum() / max(whole.sequences, 1.0)
        case "seq-mean-token-mean":
            return (sums_N / mask.sum(dim=1).clamp(min=1)).sum() / max(whole.sequences, 1.0)
        case "seq-mean-token-sum-norm":
            return sums_N.sum() / (max(whole.sequences, 1.0) * max(whole.horizon, 1.0))
        case _:
            assert_never(mode)


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
