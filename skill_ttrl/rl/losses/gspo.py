"""GSPO: one ratio for each sequence (arXiv 2507.18071)."""

from __future__ import annotations

from typing import ClassVar

from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from skill_ttrl.config import Section
from skill_ttrl.rl.losses.contract import LOSSES, LossInputs
from skill_ttrl.rl.losses.ppo_clip import clipped_surrogate
from skill_ttrl.rl.losses.ratio import clip_metrics, sequence_mean

LOG_RATIO_CEILING = 10.0
"""Largest log-ratio of a sequence (verl)."""


class GSPOOptions(Section):
    """Options of GSPO."""

    clip_ratio: float = Field(default=3e-4, gt=0, lt=1)
    """Lower clip, and the upper one where `clip_ratio_high` is None (paper, section 5.1: 3e-4)."""
    clip_ratio_high: float | None = Field(default=None, gt=0)
    """Upper clip where it differs (paper: 4e-4, as `rl.algorithm: gspo` has it)."""


@LOSSES.register("gspo")
class GSPO:
    """`-min(s A, clip(s, 1 - low, 1 + high) A)` at each token, with the sequence's ratio `s = (pi(y) / pi_old(y))^(1/|y|)`.

    The paper's objective is this with `rl.loss_aggregation: seq-mean-token-mean`. With `seq-mean-token-sum` it is LUSPO (arXiv
    2602.05261).
    """

    options_type: ClassVar[type[Section]] = GSPOOptions
    zero_without_advantage: ClassVar[bool] = True

    def __init__(self, options: GSPOOptions) -> None:
        self.options = options

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
