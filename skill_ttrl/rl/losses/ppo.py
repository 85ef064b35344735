"""Policy losses of the ratio pi / pi_old: PPO's clip, GSPO, CISPO, SAPO, REINFORCE, the geometric mean (GMPO) and VESPO."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from jaxtyping import Bool, Float
from pydantic import Field, model_validator
from torch import Tensor

from skill_ttrl.config import Section
from skill_ttrl.rl.batch import RolloutBatch
from skill_ttrl.rl.losses.contract import (
    LOSSES,
    AggregationMode,
    BuiltIn,
    Denominators,
    LossInputs,
    PolicyLoss,
    SelectingLoss,
    aggregate,
    masked_mean,
)

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


def with_selection(batch: RolloutBatch, loss: PolicyLoss, seed: int) -> RolloutBatch:
    """The batch with the tokens that the loss selects, the same on all ranks; as it is where the loss selects none."""
    trained = batch.trained_F
    if not isinstance(loss, SelectingLoss) or not bool(trained.any()):
        return batch
    generator = torch.Generator().manual_seed(seed)
    selected_F = torch.zeros(len(trained))
    selected_F[trained] = loss.select(batch.old_log_probs_F[trained], batch.advantages_F[trained], generator).float()
    return replace(batch, selected_F=selected_F)


class PPOClipOptions(Section):
    """Options of the clipped surrogate."""

    clip_ratio: float = Field(default=0.2, gt=0, lt=1)
    """Lower clip, and the upper one where `clip_ratio_high` is None."""
    clip_ratio_high: float | None = Field(default=None, gt=0)
    """Upper clip where it differs (DAPO, arXiv 2503.14476: 0.28)."""
    dual_clip: float | None = Field(default=3.0, gt=1)
    """Bound on the loss of a token with negative advantage, as a multiple of it (arXiv 1912.09729); None: no bound."""
    delta: float | None = Field(default=None, gt=1)
    """Bound on the ratio itself (INTELLECT-2, arXiv 2505.07291; TRL's `delta`). A positive advantage has met the upper clip before, so
    it bounds what `dual_clip` bounds; where both are set, the smaller one counts."""

    @model_validator(mode="after")
    def _delta_is_above_the_clip(self) -> PPOClipOptions:
        high = self.clip_ratio if self.clip_ratio_high is None else self.clip_ratio_high
        if self.delta is not None and self.delta <= 1 + high:
            raise ValueError(
                f"delta ({self.delta:g}) must be above the upper clip, 1 + {high:g}, or it replaces the clip for tokens with a positive advantage"
            )
        return self


@LOSSES.register("ppo_clip")
class PPOClip(BuiltIn):
    """-min(rho A, clip(rho, 1 - low, 1 + high) A) (PPO, arXiv 1707.06347, equation 7)."""

    options_type = PPOClipOptions

    def __init__(self, options: PPOClipOptions) -> None:
        super().__init__(options)
        # Above the upper clip, min(min(rho, delta) A, clip(rho) A) is the dual clip at delta.
        self._dual_clip = min((b for b in (options.dual_clip, options.delta) if b is not None), default=None)

    def __call__(self, inputs: LossInputs) -> tuple[Float[Tensor, "N R"], dict[str, Tensor]]:
        """See `PolicyLoss`."""
        ratio = bounded_log_ratio(inputs.log_probs, inputs.old_log_probs).exp()
        options = self.options
        loss, decided = clipped_surrogate(
            ratio, inputs.advantages, options.clip_ratio, options.clip_ratio_high, self._dual_clip
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
        """See `PolicyLoss`."""
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
        """See `PolicyLoss`."""
        low, high = self.options.clip_ratio, self.options.clip_ratio_high
        ratio = bounded_log_ratio(inputs.log_probs.detach(), inputs.old_log_probs).exp()
        weight = ratio.clamp(None if low is None else 1.0 - low, 1.0 + high)
        loss = -weight * inputs.advantages * inputs.log_probs
        return loss, clip_metrics(ratio != weight, ratio, inputs.advantages, inputs.response_mask)


class SAPOOptions(Section):
    """Options of SAPO."""

    tau_pos: float = Field(default=1.0, gt=0)
    """Temperature of the gate where the advantage is positive: the larger, the sooner a moved token stops counting."""
    tau_neg: float = Field(default=1.05, gt=0)
    """Temperature of the gate where the advantage is negative or 0."""


@LOSSES.register("sapo")
class SAPO(BuiltIn):
    """-A sigmoid(tau (rho - 1)) 4 / tau. The gradient's weight is 1 at rho = 1 and falls off on both sides."""

    options_type = SAPOOptions

    def __call__(self, inputs: LossInputs) -> tuple[Float[Tensor, "N R"], dict[str, Tensor]]:
        """See `PolicyLoss`. `gate` is the mean of the gradient's weight, in [0, 1] but for the ratio."""
        ratio = bounded_log_ratio(inputs.log_probs, inputs.old_log_probs).exp()
        tau = torch.where(inputs.advantages > 0, self.options.tau_pos, self.options.tau_neg)
        gate = torch.sigmoid(tau * (ratio - 1.0))
        slope = (4.0 * gate * (1.0 - gate)).detach()
        return -inputs.advantages * gate * 4.0 / tau, {"gate": masked_mean(slope, inputs.response_mask)}


class REINFORCEOptions(Section):
    """Options of REINFORCE."""

    ratio: bool = False
    """-rho A in place of -A log pi: its gradient is weighted by the ratio, without a bound."""
    log_ratio_coef: float = Field(default=0.0, ge=0)
    """Coefficient of (log rho)^2 / 2, added to each token's loss (DRO, arXiv 2405.19107: beta)."""


@LOSSES.register("reinforce")
class REINFORCE(BuiltIn):
    """-A log pi (Williams 1992; verl: `gpg`). Nothing bounds how far several updates on one batch go."""

    options_type = REINFORCEOptions

    def __init__(self, options: REINFORCEOptions) -> None:
        super().__init__(options)
        self.zero_without_advantage = options.log_ratio_coef == 0

    def __call__(self, inputs: LossInputs) -> tuple[Float[Tensor, "N R"], dict[str, Tensor]]:
        """See `PolicyLoss`."""
        log_ratio = bounded_log_ratio(inputs.log_probs, inputs.old_log_probs)
        loss = -inputs.advantages * (log_ratio.exp() if self.options.ratio else inputs.log_probs)
        if self.options.log_ratio_coef:
            loss = loss + 0.5 * self.options.log_ratio_coef * log_ratio.square()
        return loss, {}


class GeoMeanOptions(Section):
    """Options of GMPO."""

    clip_ratio: float = Field(default=0.4, gt=0)
    """A token's log-ratio is clipped below at minus this, in nats (paper: 0.4)."""
    clip_ratio_high: float | None = Field(default=None, gt=0)
    """Clip above, where it differs."""


@LOSSES.register("geo_mean")
class GeoMean(BuiltIn):
    """`-A_y prod_t rho_t^(1/|y|)`, the same at each token of the sequence y; A_y is the mean of its advantages.

    The paper's objective is this with `rl.loss_aggregation: seq-mean-token-mean`.
    """

    options_type = GeoMeanOptions
    one_advantage = True

    def __call__(self, inputs: LossInputs) -> tuple[Float[Tensor, "N R"], dict[str, Tensor]]:
        """See `PolicyLoss`."""
        low, advantages, mask = self.options.clip_ratio, inputs.advantages, inputs.response_mask
        high = low if self.options.clip_ratio_high is None else self.options.clip_ratio_high
        log_ratio = bounded_log_ratio(inputs.log_probs, inputs.old_log_probs)
        clipped = log_ratio.clamp(-low, high)
        sign = advantages.sign()
        pessimistic = sign * torch.minimum(sign * log_ratio, sign * clipped)
        loss_N_1 = -sequence_mean(advantages, mask) * sequence_mean(pessimistic, mask).exp()
        decided = pessimistic.detach() != log_ratio.detach()
        metrics = clip_metrics(decided & (advantages != 0), log_ratio.detach().exp(), advantages, mask)
        return loss_N_1.expand_as(log_ratio), metrics


SMALLEST_RATIO = 1e-8


class VESPOOptions(Section):
    """Options of VESPO."""

    k_pos: float = Field(default=2.0, ge=0)
    """Power of the ratio where the advantage is not negative."""
    lambda_pos: float = Field(default=3.0, gt=0)
    """Decay of the weight with the ratio where the advantage is not negative."""
    k_neg: float = Field(default=3.0, ge=0)
    """Power of the ratio where the advantage is negative."""
    lambda_neg: float = Field(default=2.0, gt=0)
    """Decay of the weight with the ratio where the advantage is negative."""


@LOSSES.register("vespo")
class VESPO(BuiltIn):
    """-sg[phi(w)] A log pi, with phi(w) = w^k e^(lambda (1 - w)) and w the ratio of the whole sequence, a product over its tokens."""

    options_type = VESPOOptions

    def __call__(self, inputs: LossInputs) -> tuple[Float[Tensor, "N R"], dict[str, Tensor]]:
        """See `PolicyLoss`. `sequence_weight` is the mean of phi over the tokens."""
        options, positive = self.options, inputs.advantages >= 0
        log_ratio = bounded_log_ratio(inputs.log_probs.detach(), inputs.old_log_probs)
        log_w = (log_ratio * inputs.response_mask).sum(dim=1, keepdim=True)
        log_w = log_w.clamp(math.log(SMALLEST_RATIO), LOG_RATIO_BOUND)
        decay = torch.where(positive, options.lambda_pos, options.lambda_neg)
        phi = (torch.where(positive, options.k_pos, options.k_neg) * log_w + decay * (1.0 - log_w.exp())).exp()
        loss = -phi * inputs.advantages * inputs.log_probs
        return loss, {"sequence_weight": masked_mean(phi, inputs.response_mask)}
