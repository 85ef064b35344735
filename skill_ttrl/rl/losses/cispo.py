"""CISPO: REINFORCE with a clipped importance weight, so that no token's gradient is lost (MiniMax-M1, arXiv 2506.13585)."""

from __future__ import annotations

from typing import ClassVar

from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from skill_ttrl.config import Section
from skill_ttrl.rl.losses.contract import LOSSES, LossInputs
from skill_ttrl.rl.losses.ratio import bounded_log_ratio, clip_metrics


class CISPOOptions(Section):
    """Options of CISPO."""

    clip_ratio: float | None = Field(default=None, gt=0)
    """The weight is at least 1 - `clip_ratio` (verl clips on both sides; its scripts set 10, which bounds nothing); None: no lower bound (paper, TRL)."""
    clip_ratio_high: float = Field(default=4.0, gt=0)
    """The weight is at most 1 + `clip_ratio_high` (ScaleRL, arXiv 2510.13786: a bound of 5, TRL's `epsilon_high`)."""


@LOSSES.register("cispo")
class CISPO:
    """-sg[clip(rho)] A log pi (equations 4 and 5)."""

    options_type: ClassVar[type[Section]] = CISPOOptions
    zero_without_advantage: ClassVar[bool] = True

    def __init__(self, options: CISPOOptions) -> None:
        self.options = options

    def __call__(self, inputs: LossInputs) -> tuple[Float[Tensor, "N R"], dict[str, Tensor]]:
        """See `PolicyLoss`."""
        low, high = self.options.clip_ratio, self.options.clip_ratio_high
        ratio = bounded_log_ratio(inputs.log_probs.detach(), inputs.old_log_probs).exp()
        weight = ratio.clamp(None if low is None else 1.0 - low, 1.0 + high)
        loss = -weight * inputs.advantages * inputs.log_probs
        return loss, clip_metrics(ratio != weight, ratio, inputs.advantages, inputs.response_mask)
