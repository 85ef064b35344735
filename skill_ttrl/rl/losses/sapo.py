"""SAPO: a soft gate on the ratio in place of a clip (arXiv 2511.20347)."""

from __future__ import annotations

from typing import ClassVar

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from skill_ttrl.config import Section
from skill_ttrl.rl.losses.aggregate import masked_mean
from skill_ttrl.rl.losses.contract import LOSSES, LossInputs
from skill_ttrl.rl.losses.ratio import bounded_log_ratio


class SAPOOptions(Section):
    """Options of SAPO."""

    tau_pos: float = Field(default=1.0, gt=0)
    """Temperature of the gate where the advantage is positive: the larger, the sooner a moved token stops counting."""
    tau_neg: float = Field(default=1.05, gt=0)
    """Temperature of the gate where the advantage is negative or 0."""


@LOSSES.register("sapo")
class SAPO:
    """-A sigmoid(tau (rho - 1)) 4 / tau. The gradient's weight is 1 at rho = 1 and falls off on both sides."""

    options_type: ClassVar[type[Section]] = SAPOOptions
    zero_without_advantage: ClassVar[bool] = True

    def __init__(self, options: SAPOOptions) -> None:
        self.options = options

    def __call__(self, inputs: LossInputs) -> tuple[Float[Tensor, "N R"], dict[str, Tensor]]:
        """See `PolicyLoss`. `gate` is the mean of the gradient's weight, in [0, 1] but for the ratio."""
        ratio = bounded_log_ratio(inputs.log_probs, inputs.old_log_probs).exp()
        tau = torch.where(inputs.advantages > 0, self.options.tau_pos, self.options.tau_neg)
        gate = torch.sigmoid(tau * (ratio - 1.0))
        slope = (4.0 * gate * (1.0 - gate)).detach()
        return -inputs.advantages * gate * 4.0 / tau, {"gate": masked_mean(slope, inputs.response_mask)}
