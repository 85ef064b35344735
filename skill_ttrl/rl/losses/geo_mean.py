"""GMPO: the geometric mean of a sequence's ratios, each clipped for itself (arXiv 2507.20673)."""

from __future__ import annotations

from typing import ClassVar

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from skill_ttrl.config import Section
from skill_ttrl.rl.losses.contract import LOSSES, LossInputs
from skill_ttrl.rl.losses.ratio import bounded_log_ratio, clip_metrics, sequence_mean


class GeoMeanOptions(Section):
    """Options of GMPO."""

    clip_ratio: float = Field(default=0.4, gt=0)
    """A token's log-ratio is clipped below at minus this, in nats (paper: 0.4)."""
    clip_ratio_high: float | None = Field(default=None, gt=0)
    """Clip above, where it differs."""


@LOSSES.register("geo_mean")
class GeoMean:
    """`-A_y prod_t rho_t^(1/|y|)`, the same at each token of the sequence y; A_y is the mean of its advantages.

    The paper's objective is this with `rl.loss_aggregation: seq-mean-token-mean`.
    """

    options_type: ClassVar[type[Section]] = GeoMeanOptions
    zero_without_advantage: ClassVar[bool] = True
    one_advantage: ClassVar[bool] = True

    def __init__(self, options: GeoMeanOptions) -> None:
        self.options = options

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
