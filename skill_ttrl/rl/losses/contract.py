"""The protocol of a policy loss: its inputs, its outputs and the registry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, assert_never, runtime_checkable

from jaxtyping import Bool, Float
from pydantic import BaseModel
from torch import Generator, Tensor

from skill_ttrl.registry import Registry


@dataclass(frozen=True, slots=True)
class LossInputs:
    """One padded micro-batch: N sequences of up to R response tokens. Further inputs of a loss become fields here."""

    log_probs: Float[Tensor, "N R"]
    """Of the policy that learns, with gradient, in nats."""
    old_log_probs: Float[Tensor, "N R"]
    """Denominators of the policy ratio: of the policy before this update."""
    advantages: Float[Tensor, "N R"]
    response_mask: Float[Tensor, "N R"]
    """1 at trained tokens, 0 elsewhere."""
    selected: Float[Tensor, "N R"] | None = None
    """1 at the tokens that the loss itself has selected (`SelectingLoss`), 0 elsewhere; None where it selects none."""


class PolicyLoss(Protocol):
    """A policy loss.

    It may say of itself, as attributes: `zero_without_advantage` (default False): loss and gradient are exactly 0 wherever the
    advantage is 0, so that such items need not be computed. `one_advantage` (default False): it takes one advantage for all tokens of a
    sequence.
    """

    def __call__(self, inputs: LossInputs) -> tuple[Float[Tensor, "N R"], dict[str, Tensor]]:
        """(loss of each token, info).

        The learner multiplies the importance weights in and aggregates (`losses.aggregate`). `info` holds metrics of the loss's
        own, for example `clip_fraction`: detached means over the trained tokens.
        """


@runtime_checkable
class SelectingLoss(Protocol):
    """A loss that treats some tokens of a batch unlike the others."""

    def select(
        self, log_probs_K: Float[Tensor, " K"], advantages_K: Float[Tensor, " K"], generator: Generator
    ) -> Bool[Tensor, " K"]:
        """Select tokens among all K trained ones of a step, from the log-probs before the update."""


class PolicyLossType(Protocol):
    """A class of policy losses, called with its options once a run."""

    @property
    def options_type(self) -> type[BaseModel]:
        """The options, with their defaults and checks."""

    def __call__(self, options: Any, /) -> PolicyLoss:
        """Build it from an `options_type`."""


class BuiltIn:
    """Base of our losses: holds the options. Items whose advantage is 0 need not be computed unless a subclass says so."""

    options_type: ClassVar[type[BaseModel]]
    zero_without_advantage = True

    def __init__(self, options: Any) -> None:
        self.options = options


LOSSES: Registry[PolicyLossType] = Registry("loss", key="rl.loss", confused_with="skill_ttrl.rl.algorithms:ALGORITHMS")


# From a loss at each token to one number, so that parts of a batch add up to the whole; the entropy bonus is such a sum.
#
# The divisors belong to the whole mini-batch (`Denominators`), not to the part at hand: then the losses and gradients of
# micro-batches, simply added, are those of the whole, whatever the micro-batch size.


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
