"""The names under which a config chooses a policy loss."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from skill_ttrl.registry import Registry
from skill_ttrl.rl.losses.aggregate import AggregationMode, Denominators


class PolicyLoss(Protocol):
    """A policy loss over one padded micro-batch. All tensors are (N, T); `advantages` may be (N, 1)."""

    def __call__(
        self,
        log_probs: Tensor,
        old_log_probs: Tensor,
        advantages: Tensor,
        response_mask: Tensor,
        *,
        clip_ratio: float,
        clip_ratio_high: float | None,
        dual_clip: float | None,
        loss_agg_mode: AggregationMode,
        denominators: Denominators | None,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """(loss, means over masked tokens)."""


LOSSES: Registry[PolicyLoss] = Registry("loss", functions=True)

ZERO_WITHOUT_ADVANTAGE = frozenset({"ppo_clip"})
"""Losses whose value and gradient are exactly 0 wherever the advantage is 0."""
