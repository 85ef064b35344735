"""Optimizer steps that were not taken because loss or gradient is not finite: what is known of them, and a file to find the cause in."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from jaxtyping import Int
from torch import Tensor

from skill_ttrl.rl.batch import RolloutBatch


@dataclass(frozen=True, slots=True)
class SkippedUpdate:
    """One optimizer step that was not taken."""

    batch: RolloutBatch
    """The whole batch of the update that it belongs to."""
    items_M: Int[Tensor, " M"]
    """The mini-batch: items of that batch."""
    loss: float
    grad_norm: float
    overflow: bool
    """True if only the scaled gradient of fp16 is too large: the loss scaler finds its scale so, and nothing is wrong."""

    def reason(self) -> str:
        """Say what is not finite: an input of the loss, the loss, or its gradient alone."""
        inputs = ", ".join(
            f"{name} at {count} tokens" for name, count in nonfinite_inputs(self.batch, self.items_M).items()
        )
        if math.isfinite(self.loss):
            return f"the loss is {self.loss:.4g}, the norm of its gradient {self.grad_norm}" + (
                f" ({inputs})" if inputs else ""
            )
        return f"the loss is {self.loss}; " + (
            f"not finite before it: {inputs}" if inputs else "all that goes into it is finite"
        )


def nonfinite_inputs(batch: RolloutBatch, items_M: Int[Tensor, " M"]) -> dict[str, int]:
    """Count the values of these items that are not finite, by the field of the batch that holds them."""
    inside_F = torch.isin(batch.item_F, items_M)
    found = {}
    for field in fields(batch):
        values = getattr(batch, field.name)
        if field.name.endswith("_F") and values is not None and values.is_floating_point():
            count = int((~values.isfinite() & inside_F).sum())
            if count:
                found[field.name] = count
    return found


def dump_skipped(skipped: Sequence[SkippedUpdate]) -> bytes:
    """Write the skipped steps of one update as a file that `torch.load(path, weights_only=True)` reads.

    It is a dictionary: `batch`, the tensors of the `RolloutBatch` by field; `updates`, one dictionary for each step with `items`,
    `loss`, `grad_norm`, and `nonfinite`, as `nonfinite_inputs` counts.
    """
    batch = skipped[0].batch
    tensors = {field.name: getattr(batch, field.name) for field in fields(batch)}
    updates = [
        {
            "items": each.items_M,
            "loss": each.loss,
            "grad_norm": each.grad_norm,
            "nonfinite": nonfinite_inputs(batch, each.items_M),
        }
        for each in skipped
    ]
    file = io.BytesIO()
    torch.save({"batch": tensors, "updates": updates}, file)
    return file.getvalue()
