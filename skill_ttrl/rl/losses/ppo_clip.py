"""The clipped surrogate of PPO, with a separate upper clip (DAPO) and the dual clip."""

from __future__ import annotations

from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from pydantic import Field, model_validator
from torch import Tensor

from skill_ttrl.config import Section
from skill_ttrl.rl.losses.aggregate import AggregationMode, Denominators, aggregate, masked_mean
from skill_ttrl.rl.losses.contract import LOSSES, LossInputs
from skill_ttrl.rl.losses.ratio import bounded_log_ratio, clip_metrics, ratio_metrics


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
                f"delta ({self.delta:g}) must be above the upper clip, 1 + {high:g}, or it takes the clip's place for good tokens too"
            )
        return self


@LOSSES.register("ppo_clip")
class PPOClip:
    """-min(rho A, clip(rho, 1 - low, 1 + high) A) (PPO, arXiv 1707.06347, equation 7)."""

    options_type: ClassVar[type[Section]] = PPOClipOptions
    zero_without_advantage: ClassVar[bool] = True

    def __init__(self, options: PPOClipOptions) -> None:
        self.options = options
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
