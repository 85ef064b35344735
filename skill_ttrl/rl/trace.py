"""Which turns of a batch carried the gradient of the policy loss."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from skill_ttrl.rl.batch import RolloutBatch
from skill_ttrl.rl.forward.micro_batch import MicroBatch
from skill_ttrl.rl.parallel.ranks import Ranks


@dataclass(frozen=True, slots=True)
class TurnGradients:
    """Of each turn of a batch, over all optimizer steps of an update that were taken."""

    absolute_S: Float[Tensor, " S"]
    """Sum over its trained tokens of |d loss / d log-prob|, of the policy loss alone: a KL term or an entropy bonus pulls on all."""
    stopped_S: Float[Tensor, " S"]
    """Tokens with an advantage whose gradient a clip or a weight of 0 has stopped; a token counts once for each pass over it."""


class GradientTrace:
    """Gathers `TurnGradients`; nothing waits for the device until the end."""

    def __init__(self, batch: RolloutBatch, device: torch.device) -> None:
        self._batch = batch
        self._taken_2_S = torch.zeros(2, len(batch.turn_places), device=device)
        self._pending_2_S = torch.zeros_like(self._taken_2_S)

    def add(self, rows: Int[Tensor, " N"], micro_batch: MicroBatch, gradient_N_R: Float[Tensor, "N R"] | None) -> None:
        """Add a micro-batch with the items `rows`; a gradient of None is 0."""
        if gradient_N_R is None:
            return
        turn_K = self._batch.turn_F[self._batch.trained_places(rows)].to(self._taken_2_S.device)
        gradient_K = gradient_N_R.flatten()[micro_batch.slots_K]
        advantages_K = micro_batch.advantages_N_R.flatten()[micro_batch.slots_K]
        stopped_K = (gradient_K == 0) & (advantages_K != 0)
        self._pending_2_S.index_add_(1, turn_K, torch.stack([gradient_K.abs(), stopped_K.to(gradient_K.dtype)]))

    def settle(self, applied: bool) -> None:
        """Count the micro-batches since the last call, if their optimizer step was taken."""
        if applied:
            self._taken_2_S += self._pending_2_S
        self._pending_2_S.zero_()

    def gathered(self, ranks: Ranks) -> TurnGradients:
        """Those of all ranks together."""
        ranks.sum_([self._taken_2_S])
        absolute_S, stopped_S = self._taken_2_S.cpu()
        return TurnGradients(absolute_S, stopped_S)
