"""Which items of a batch carried the gradient of the policy loss."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from skill_ttrl.rl.forward.micro_batch import MicroBatch
from skill_ttrl.rl.parallel.ranks import Ranks


@dataclass(frozen=True, slots=True)
class ItemGradients:
    """Of each item of a batch, over all optimiser steps of an update that were taken."""

    absolute_N: Float[Tensor, " N"]
    """Sum over its trained tokens of |d loss / d log-prob|, of the policy loss alone: a KL term or an entropy bonus pulls on all."""
    stopped_N: Float[Tensor, " N"]
    """Tokens with an advantage whose gradient a clip or a weight of 0 has stopped; a token counts once for each pass over it."""


class GradientTrace:
    """Gathers `ItemGradients`; nothing waits for the device until the end."""

    def __init__(self, items: int, device: torch.device) -> None:
        self._taken_2_N = torch.zeros(2, items, device=device)
        self._pending_2_N = torch.zeros_like(self._taken_2_N)

    def add(self, rows: Int[Tensor, " N"], micro_batch: MicroBatch, gradient_N_R: Float[Tensor, "N R"] | None) -> None:
        """Add a micro-batch with the items `rows`; a gradient of None is 0."""
        if gradient_N_R is None:
            return
        mask = micro_batch.response_mask_N_R
        stopped_N_R = (gradient_N_R == 0) & (micro_batch.advantages_N_R != 0) & (mask > 0)
        found = torch.stack([(gradient_N_R.abs() * mask).sum(1), stopped_N_R.sum(1).to(mask.dtype)])
        self._pending_2_N.index_add_(1, rows.to(found.device), found)

    def settle(self, applied: bool) -> None:
        """Count the micro-batches since the last call, if their optimiser step was taken."""
        if applied:
            self._taken_2_N += self._pending_2_N
        self._pending_2_N.zero_()

    def gathered(self, ranks: Ranks) -> ItemGradients:
        """Those of all ranks together."""
        ranks.sum_([self._taken_2_N])
        absolute_N, stopped_N = self._taken_2_N.cpu()
        return ItemGradients(absolute_N, stopped_N)
