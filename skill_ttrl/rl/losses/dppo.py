"""DPPO: tokens are masked by how far their probability has moved, not by its ratio (arXiv 2602.04879); IPO is a setting of it."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float
from pydantic import Field
from torch import Tensor

from skill_ttrl.config import Section
from skill_ttrl.rl.losses.aggregate import masked_mean
from skill_ttrl.rl.losses.contract import LOSSES, LossInputs
from skill_ttrl.rl.losses.ratio import bounded_log_ratio

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
class DPPO:
    """-sg[min(rho, ratio_max)] A log pi at tokens within the bound, 0 elsewhere."""

    options_type: ClassVar[type[Section]] = DPPOOptions

    def __init__(self, options: DPPOOptions) -> None:
        self.options = options
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
