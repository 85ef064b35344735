"""REINFORCE: the plain policy gradient, with a ratio and a penalty on it as options (GPG and DRO among its settings)."""

from __future__ import annotations

from typing import ClassVar

from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from skill_ttrl.config import Section
from skill_ttrl.rl.losses.contract import LOSSES, LossInputs
from skill_ttrl.rl.losses.ratio import bounded_log_ratio


class REINFORCEOptions(Section):
    """Options of REINFORCE."""

    ratio: bool = False
    """-rho A in place of -A log pi: its gradient is weighted by the ratio, without a bound."""
    log_ratio_coef: float = Field(default=0.0, ge=0)
    """Coefficient of (log rho)^2 / 2, added to each token's loss (DRO, arXiv 2405.19107: beta)."""


@LOSSES.register("reinforce")
class REINFORCE:
    """-A log pi (Williams 1992; verl: `gpg`). Nothing bounds how far several updates on one batch go."""

    options_type: ClassVar[type[Section]] = REINFORCEOptions

    def __init__(self, options: REINFORCEOptions) -> None:
        self.options = options
        self.zero_without_advantage = options.log_ratio_coef == 0
        self.has_ratio = options.ratio

    def __call__(self, inputs: LossInputs) -> tuple[Float[Tensor, "N R"], dict[str, Tensor]]:
        """See `PolicyLoss`."""
        log_ratio = bounded_log_ratio(inputs.log_probs, inputs.old_log_probs)
        loss = -inputs.advantages * (log_ratio.exp() if self.options.ratio else inputs.log_probs)
        if self.options.log_ratio_coef:
            loss = loss + 0.5 * self.options.log_ratio_coef * log_ratio.square()
        return loss, {}
