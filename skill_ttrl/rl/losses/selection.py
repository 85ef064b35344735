"""Tokens that a loss selects in a step's whole batch, before it is cut into mini-batches."""

from __future__ import annotations

from dataclasses import replace

import torch

from skill_ttrl.rl.batch import RolloutBatch
from skill_ttrl.rl.losses.contract import PolicyLoss, SelectingLoss


def with_selection(batch: RolloutBatch, loss: PolicyLoss, seed: int) -> RolloutBatch:
    """The batch with the tokens that the loss selects, the same on all ranks; as it is where the loss selects none."""
    trained = batch.trained_F
    if not isinstance(loss, SelectingLoss) or not bool(trained.any()):
        return batch
    generator = torch.Generator().manual_seed(seed)
    selected_F = torch.zeros(len(trained))
    selected_F[trained] = loss.select(batch.old_log_probs_F[trained], batch.advantages_F[trained], generator).float()
    return replace(batch, selected_F=selected_F)
