"""Policy losses that leave tokens out: by divergence (DPPO), by covariance (Clip-Cov, KL-Cov)."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Bool, Float
from pydantic import Field, model_validator
from torch import Tensor

from skill_ttrl.config import Section
from skill_ttrl.rl.losses.contract import LOSSES, BuiltIn, LossInputs, masked_mean
from skill_ttrl.rl.losses.ppo import bounded_log_ratio, clip_metrics, clipped_surrogate

Divergence = Literal["tv", "kl"]


class DPPOOptions(Section):
    """Options of DPPO."""

    divergence: Divergence = "tv"
    """Measure of how far a token's probability has moved. `tv`: `|pi - pi_old|`. `kl`: `KL(pi_old || pi)` of the two events "this token"
    and "another"."""
    threshold: float = Field(default=0.2, gt=0)
    """Bound where the advantage is negative, and where it is positive if `threshold_high` is None (prime-rl: 0.2 for `tv`)."""
    threshold_high: float | None = Field(default=None, gt=0)
    """Bound where the advantage is positive."""
    both_directions: bool = False
    """Mask a token that has moved too far in either direction (IPO of prime-rl, with a `threshold` of 0.1). False: only where it moved
    with its advantage."""
    ratio_max: float | None = Field(default=20.0, gt=1)
    """Largest ratio that weighs a gradient (verl: 20); None: no bound (prime-rl)."""
    log_ratio_coef: float = Field(default=0.0, ge=0)
    """Coefficient of (log rho)^2, added to every token's loss, masked or not (prime-rl's `kl_tau`: 0.001)."""


@LOSSES.register("dppo")
class DPPO(BuiltIn):
    """-sg[min(rho, ratio_max)] A log pi at tokens within the bound, 0 elsewhere."""

    options_type = DPPOOptions

    def __init__(self, options: DPPOOptions) -> None:
        super().__init__(options)
        self.zero_without_advantage = options.log_ratio_coef == 0

    def __call__(self, inputs: LossInputs) -> tuple[Float[Tensor, "N R"], dict[str, Tensor]]:
        """See `PolicyLoss`. `clip_fraction` is the share of masked tokens, `_low` and `_high` of those with A < 0 and A > 0."""
        options, advantages, mask = self.options, inputs.advantages, inputs.response_mask
        log_ratio = bounded_log_ratio(inputs.log_probs, inputs.old_log_probs)
        high = options.threshold if options.threshold_high is None else options.threshold_high
        within = within_bounds(
            inputs.log_probs.detach(),
            inputs.old_log_probs,
            advantages,
            options.threshold,
            high,
            options.divergence,
            both_directions=options.both_directions,
        )
        ratio = log_ratio.detach().exp()
        weight = (ratio if options.ratio_max is None else ratio.clamp(max=options.ratio_max)) * within
        loss = -weight * advantages * inputs.log_probs
        if options.log_ratio_coef:
            loss = loss + options.log_ratio_coef * log_ratio.square()
        out = (~within).to(mask.dtype)
        return loss, {
            "clip_fraction": masked_mean(out, mask),
            "clip_fraction_low": masked_mean(out * (advantages < 0), mask),
            "clip_fraction_high": masked_mean(out * (advantages > 0), mask),
        }


def within_bounds(
    log_probs: Float[Tensor, "N R"],
    old_log_probs: Float[Tensor, "N R"],
    advantages: Float[Tensor, "N R"],
    threshold: float,
    threshold_high: float,
    divergence: Divergence = "tv",
    *,
    both_directions: bool = False,
) -> Bool[Tensor, "N R"]:
    """True where a token has moved no farther than its bound (section 5; masks M^TV and M^KL)."""
    moved = log_probs.exp() - old_log_probs.exp()
    distance = moved.abs() if divergence == "tv" else binary_kl(log_probs, old_log_probs)
    too_far = distance > torch.where(advantages > 0, threshold_high, threshold)
    if both_directions:
        return ~too_far
    with_advantage = torch.where(advantages > 0, moved > 0, moved < 0)
    return ~(too_far & with_advantage)


def binary_kl(log_probs: Float[Tensor, "N R"], old_log_probs: Float[Tensor, "N R"]) -> Float[Tensor, "N R"]:
    """KL(pi_old || pi), in nats, of the two events "this token" and "another"; a lower bound of the KL over the vocabulary."""
    new, old = log_probs.exp(), old_log_probs.exp()
    rest = ((1.0 - old + 1e-8) / (1.0 - new + 1e-8)).log()
    return old * (old_log_probs - log_probs) + (1.0 - old) * rest


# Clip-Cov and KL-Cov: the few tokens that lower the entropy most are held back (arXiv 2505.22617).
#
# A token whose log-prob and advantage are both far above the mean moves the entropy most. Which tokens these are is found once for
# a step's whole batch, from the log-probs before the update, so that neither micro-batches nor processes change it. verl looks at each
# micro-batch alone and at the log-probs of the moment; before the first optimizer step the two are the same.


class ClipCovOptions(Section):
    """Options of Clip-Cov."""

    clip_ratio: float = Field(default=0.2, gt=0)
    """Lower clip, and the upper one where `clip_ratio_high` is None. 1 or more: the covariance alone clips from below."""
    clip_ratio_high: float | None = Field(default=None, gt=0)
    """Upper clip where it differs."""
    fraction: float = Field(default=2e-4, gt=0, le=1)
    """Share of the trained tokens that lose their gradient (verl: `clip_cov_ratio`)."""
    low: float = 1.0
    """They are drawn from those whose covariance is above this (verl: `clip_cov_lb`)."""
    high: float = 5.0
    """They are drawn from those whose covariance is below this (verl: `clip_cov_ub`)."""

    @model_validator(mode="after")
    def _low_is_below_high(self) -> ClipCovOptions:
        if self.low >= self.high:
            raise ValueError(f"low ({self.low:g}) must be below high ({self.high:g}), or no token is ever clipped")
        return self


@LOSSES.register("clip_cov")
class ClipCov(BuiltIn):
    """The clipped surrogate, and 0 at the selected tokens (equation 11)."""

    options_type = ClipCovOptions

    def select(
        self, log_probs_K: Float[Tensor, " K"], advantages_K: Float[Tensor, " K"], generator: torch.Generator
    ) -> Bool[Tensor, " K"]:
        """Draw the tokens to clip: see `SelectingLoss`."""
        covariance_K = token_covariance(log_probs_K, advantages_K)
        within = ((covariance_K > self.options.low) & (covariance_K < self.options.high)).nonzero().squeeze(1)
        count = max(int(self.options.fraction * len(covariance_K)), 1)
        drawn = within[torch.randperm(len(within), generator=generator)[:count]]
        return torch.zeros(len(covariance_K), dtype=torch.bool).index_fill(0, drawn, True)

    def __call__(self, inputs: LossInputs) -> tuple[Float[Tensor, "N R"], dict[str, Tensor]]:
        """See `PolicyLoss`. `selected_fraction` is the share of tokens that are held back."""
        ratio = bounded_log_ratio(inputs.log_probs, inputs.old_log_probs).exp()
        options = self.options
        loss, decided = clipped_surrogate(ratio, inputs.advantages, options.clip_ratio, options.clip_ratio_high)
        metrics = clip_metrics(decided, ratio.detach(), inputs.advantages, inputs.response_mask)
        if inputs.selected is not None:
            held_back = inputs.selected * ~decided  # those that the surrogate clips have no gradient anyway
            loss = loss * (1.0 - held_back)
            metrics["selected_fraction"] = masked_mean(held_back, inputs.response_mask)
        return loss, metrics


class KLCovOptions(Section):
    """Options of KL-Cov."""

    fraction: float = Field(default=2e-4, gt=0, le=1)
    """Share of the trained tokens that are penalised, those of the largest covariance (verl: `kl_cov_ratio`)."""
    kl_coef: float = Field(default=1.0, ge=0)
    """Coefficient of `|log rho|` at these tokens (paper: 1; verl: `ppo_kl_coef`)."""


@LOSSES.register("kl_cov")
class KLCov(BuiltIn):
    """`-rho A`, and `+ kl_coef |log rho|` at the selected tokens (equation 13). There is no clip."""

    options_type = KLCovOptions
    zero_without_advantage = False

    def select(
        self, log_probs_K: Float[Tensor, " K"], advantages_K: Float[Tensor, " K"], generator: torch.Generator
    ) -> Bool[Tensor, " K"]:
        """Find the tokens of the largest covariance: see `SelectingLoss`."""
        covariance_K = token_covariance(log_probs_K, advantages_K)
        count = max(int(self.options.fraction * len(covariance_K)), 1)
        return torch.zeros(len(covariance_K), dtype=torch.bool).index_fill(0, covariance_K.topk(count).indices, True)

    def __call__(self, inputs: LossInputs) -> tuple[Float[Tensor, "N R"], dict[str, Tensor]]:
        """See `PolicyLoss`. `selected_fraction` is the share of selected tokens."""
        log_ratio = bounded_log_ratio(inputs.log_probs, inputs.old_log_probs)
        loss = -inputs.advantages * log_ratio.exp()
        if inputs.selected is None:
            return loss, {}
        loss = loss + self.options.kl_coef * log_ratio.abs() * inputs.selected
        return loss, {"selected_fraction": masked_mean(inputs.selected, inputs.response_mask)}


def token_covariance(log_probs_K: Float[Tensor, " K"], advantages_K: Float[Tensor, " K"]) -> Float[Tensor, " K"]:
    """Each token's part of the covariance of log-prob and advantage, over K tokens (equation 8)."""
    return (log_probs_K - log_probs_K.mean()) * (advantages_K - advantages_K.mean())
