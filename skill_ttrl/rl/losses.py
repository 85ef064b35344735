"""Policy losses: what the gradient follows; how the losses of tokens become one number; and the divergence from a reference.

A loss maps `LossInputs` to the loss of each token and metrics of its own; the learner weights and aggregates. To add one, write it like
those here and register the class with `LOSSES.register("name")`; one of your own is named `module:Class` in `rl.loss`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, assert_never

import torch
from jaxtyping import Bool, Float
from pydantic import BaseModel, Field
from torch import Tensor

from skill_ttrl.config import Section
from skill_ttrl.config.rl import build_from
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


class PolicyLoss(Protocol):
    """A policy loss.

    Its class is called with its options once a run, and names their type as `options_type` (a pydantic model). With an attribute
    `zero_without_advantage = True` it says that loss and gradient are exactly 0 wherever the advantage is 0, so that
    such items need not be computed.
    """

    def __call__(self, inputs: LossInputs) -> tuple[Float[Tensor, "N R"], dict[str, Tensor]]:
        """(loss of each token, info).

        The learner multiplies the importance weights in and aggregates (`losses.aggregate`). `info` holds metrics of the loss's
        own, for example `clip_fraction`: detached means over the trained tokens.
        """


class BuiltIn:
    """Base of our losses: holds the options. Items whose advantage is 0 need not be computed unless a subclass says so."""

    options_type: ClassVar[type[BaseModel]] = Section
    zero_without_advantage = True

    def __init__(self, options: Any) -> None:
        self.options = options


LOSSES: Registry[Any] = Registry("loss")


def build_loss(settings: Mapping[str, Any]) -> PolicyLoss:
    """Build the loss that `rl.loss` names.

    Args:
        settings: `type` (a registered name or `module:Class`) and that loss's options.

    Raises:
        ConfigError: there is no such loss, or an option is wrong.
    """
    built: PolicyLoss = build_from(LOSSES, settings)
    return built


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


# Losses of the ratio pi / pi_old.


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


class PPOClipOptions(Section):
    """Options of the clipped surrogate."""

    clip_ratio: float = Field(default=0.2, gt=0, lt=1)
    """Lower clip, and the upper one where `clip_ratio_high` is None."""
    clip_ratio_high: float | None = Field(default=None, gt=0)
    """Upper clip where it differs (DAPO, arXiv 2503.14476: 0.28)."""
    dual_clip: float | None = Field(default=3.0, gt=1)
    """Bound on the loss of a token with negative advantage, as a multiple of it (arXiv 1912.09729); None: no bound."""


@LOSSES.register("ppo_clip")
class PPOClip(BuiltIn):
    """-min(rho A, clip(rho, 1 - low, 1 + high) A) (PPO, arXiv 1707.06347, equation 7)."""

    options_type = PPOClipOptions

    def __call__(self, inputs: LossInputs) -> tuple[Float[Tensor, "N R"], dict[str, Tensor]]:
        """The loss of each token, and the shares that a clip decides."""
        ratio = bounded_log_ratio(inputs.log_probs, inputs.old_log_probs).exp()
        options = self.options
        loss, decided = clipped_surrogate(
            ratio, inputs.advantages, options.clip_ratio, options.clip_ratio_high, options.dual_clip
        )
        return loss, clip_metrics(decided, ratio, inputs.advantages, inputs.response_mask)


def clipped_surrogate(
    ratio: Float[Tensor, "N T"],
    advantages: Float[Tensor, "N T"],
    clip_ratio: float = 0.2,
    clip_ratio_high: float | None = None,
    dual_clip: float | None = None,
) -> tuple[Float[Tensor, "N T"], Bool[Tensor, "N T"]]:
    """The loss of each token, and where a clip decides it.

    Where A < 0 and a dual clip c is set, the loss is at most -c A (arXiv 1912.09729, equation 5).
    """
    high = clip_ratio if clip_ratio_high is None else clip_ratio_high
    # Small batches spend their time on the number of operations.
    cost = -advantages
    plain = cost * ratio
    bounded = cost * ratio.clamp(1.0 - clip_ratio, 1.0 + high)
    loss = torch.maximum(plain, bounded)
    decided = bounded > plain
    if dual_clip is not None:
        ceiling = advantages.abs() * dual_clip  # the loss of a positive advantage is below 0 anyway
        decided = decided | (loss > ceiling)
        loss = torch.minimum(loss, ceiling)
    return loss, decided


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
    """Compute the clipped surrogate loss of a batch, for a loop of one's own; see `clipped_surrogate`.

    Args:
        log_probs: Of the policy that learns, with gradient, in nats (N, T).
        old_log_probs: Of the policy that sampled (N, T).
        advantages: (N, T), or (N, 1) for one a sequence.
        response_mask: 1 at trained tokens (N, T).
        clip_ratio: Lower clip, and the upper one where `clip_ratio_high` is None.
        clip_ratio_high: Upper clip.
        dual_clip: c > 1, or None for no bound.
        loss_agg_mode: See `aggregate`.
        denominators: See `aggregate`.

    Returns:
        (loss, info). `info` holds, detached: `policy_loss` (the loss itself), `clip_fraction` (share of tokens where the clip decides, either one),
        `approx_kl` (mean of rho - 1 - log rho, at least 0, nats), `ratio_mean` and `ratio_max`.
    """
    log_ratio = bounded_log_ratio(log_probs, old_log_probs)
    loss, decided = clipped_surrogate(log_ratio.exp(), advantages, clip_ratio, clip_ratio_high, dual_clip)
    info = {"clip_fraction": masked_mean(decided.to(loss.dtype), response_mask)}
    info |= ratio_metrics(log_ratio, response_mask)
    total = aggregate(loss, response_mask, loss_agg_mode, denominators)
    return total, info | {"policy_loss": total.detach()}


LOG_RATIO_CEILING = 10.0
"""Largest log-ratio of a sequence (verl)."""


class GSPOOptions(Section):
    """Options of GSPO."""

    clip_ratio: float = Field(default=3e-4, gt=0, lt=1)
    """Lower clip, and the upper one where `clip_ratio_high` is None (paper, section 5.1: 3e-4)."""
    clip_ratio_high: float | None = Field(default=None, gt=0)
    """Upper clip where it differs (paper: 4e-4, as `rl.algorithm: gspo` has it)."""


@LOSSES.register("gspo")
class GSPO(BuiltIn):
    """`-min(s A, clip(s, 1 - low, 1 + high) A)` at each token, with the sequence's ratio `s = (pi(y) / pi_old(y))^(1/|y|)`.

    The paper's objective is this with `rl.loss_aggregation: seq-mean-token-mean`. With `seq-mean-token-sum` it is LUSPO (arXiv
    2602.05261).
    """

    options_type = GSPOOptions

    def __call__(self, inputs: LossInputs) -> tuple[Float[Tensor, "N R"], dict[str, Tensor]]:
        """The loss of each token, and the shares that a clip decides."""
        ratio = sequence_ratio(inputs.log_probs, inputs.old_log_probs, inputs.response_mask)
        loss, decided = clipped_surrogate(
            ratio, inputs.advantages, self.options.clip_ratio, self.options.clip_ratio_high
        )
        return loss, clip_metrics(decided, ratio, inputs.advantages, inputs.response_mask)


def sequence_ratio(
    log_probs: Float[Tensor, "N R"], old_log_probs: Float[Tensor, "N R"], mask: Float[Tensor, "N R"]
) -> Float[Tensor, "N R"]:
    """The sequence's ratio at each of its tokens, with the gradient of that token alone (equation 14: s_t = sg[s] pi / sg[pi])."""
    mean_N_1 = sequence_mean((log_probs - old_log_probs).detach(), mask)
    straight_through = log_probs - log_probs.detach()
    return (straight_through + mean_N_1).clamp(max=LOG_RATIO_CEILING).exp()


class CISPOOptions(Section):
    """Options of CISPO."""

    clip_ratio: float | None = Field(default=None, gt=0)
    """The weight is at least 1 - `clip_ratio` (verl clips on both sides; its scripts set 10, which bounds nothing); None: no lower bound (paper, TRL)."""
    clip_ratio_high: float = Field(default=4.0, gt=0)
    """The weight is at most 1 + `clip_ratio_high` (ScaleRL, arXiv 2510.13786: a bound of 5, TRL's `epsilon_high`)."""


@LOSSES.register("cispo")
class CISPO(BuiltIn):
    """-sg[clip(rho)] A log pi (equations 4 and 5)."""

    options_type = CISPOOptions

    def __call__(self, inputs: LossInputs) -> tuple[Float[Tensor, "N R"], dict[str, Tensor]]:
        """The loss of each token, and the shares that a clip decides."""
        low, high = self.options.clip_ratio, self.options.clip_ratio_high
        ratio = bounded_log_ratio(inputs.log_probs.detach(), inputs.old_log_probs).exp()
        weight = ratio.clamp(None if low is None else 1.0 - low, 1.0 + high)
        loss = -weight * inputs.advantages * inputs.log_probs
        return loss, clip_metrics(ratio != weight, ratio, inputs.advantages, inputs.response_mask)


@LOSSES.register("reinforce")
class REINFORCE(BuiltIn):
    """-A log pi (Williams 1992; verl: `gpg`). Nothing bounds how far several updates on one batch go."""

    def __call__(self, inputs: LossInputs) -> tuple[Float[Tensor, "N R"], dict[str, Tensor]]:
        """The loss of each token."""
        return -inputs.advantages * inputs.log_probs, {}


# KL divergence between the policy and a reference, estimated from log-probs of the sampled tokens.


def compute_kl_penalty(
    log_probs: Float[Tensor, "N T"],
    ref_log_probs: Float[Tensor, "N T"],
    response_mask: Float[Tensor, "N T"],
    kl_coef: float = 0.001,
    loss_agg_mode: AggregationMode = "token-mean",
    denominators: Denominators | None = None,
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """The KL term of the loss, and the KL itself.

    Args:
        log_probs: Of the policy, with gradient (N, T).
        ref_log_probs: Of the reference (N, T).
        response_mask: 1 at trained tokens (N, T).
        kl_coef: Weight of the term.
        loss_agg_mode: See `aggregate`.
        denominators: See `aggregate`.

    Returns:
        (kl_loss, kl_value): `kl_coef` times the aggregate; and the mean over masked tokens, detached, in nats.
    """
    kl_N_T = kl_estimate(log_probs, ref_log_probs)
    kl_loss = kl_coef * aggregate(kl_N_T, response_mask, loss_agg_mode, denominators)
    return kl_loss, masked_mean(kl_N_T.detach(), response_mask)


def kl_estimate(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    """k3 of KL(policy || reference) at each token, in nats; any shape: exp(-d) - 1 + d with d = log pi - log ref.

    John Schulman, "Approximating KL Divergence" (2020). As a loss its gradient is biased, and always towards the reference. Clamped as in
    verl: difference to +-20, value to at most 10.
    """
    back = (ref_log_probs - log_probs).clamp(-20.0, 20.0)
    return (back.exp() - back - 1.0).clamp(-10.0, 10.0)
