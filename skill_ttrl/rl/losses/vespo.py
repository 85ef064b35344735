"""VESPO: a smooth weight on the ratio of whole sequences (arXiv 2602.10693)."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from skill_ttrl.config import Section
from skill_ttrl.rl.losses.aggregate import masked_mean
from skill_ttrl.rl.losses.contract import LOSSES, LossInputs
from skill_ttrl.rl.losses.ratio import LOG_RATIO_BOUND, bounded_log_ratio

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
class VESPO:
    """-sg[phi(w)] A log pi, with phi(w) = w^k e^(lambda (1 - w)) and w the ratio of the whole sequence, a product over its tokens."""

    options_type: ClassVar[type[Section]] = VESPOOptions
    zero_without_advantage: ClassVar[bool] = True

    def __init__(self, options: VESPOOptions) -> None:
        self.options = options

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
