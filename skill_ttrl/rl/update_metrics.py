"""Metrics of one policy update, gathered over its micro-batches, optimizer steps and ranks."""

from __future__ import annotations

import io
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import torch
from jaxtyping import Float, Int
from torch import Tensor

from skill_ttrl.rl.batch import RolloutBatch
from skill_ttrl.rl.forward.micro_batch import MicroBatch
from skill_ttrl.rl.parallel.ranks import Ranks


def sampled_entropy(batch: RolloutBatch) -> float:
    """Minus the mean log-prob of the trained tokens: an unbiased estimate of the entropy of the policy that sampled (nats a token)."""
    trained_K = batch.old_log_probs_F[batch.trained_F]
    return -float(trained_K.mean()) if len(trained_K) else 0.0


def batch_metrics(batch: RolloutBatch) -> dict[str, float]:
    """Metrics of a batch as it came: `entropy`, `post_entropy` (nats a token), `tokens` (trained), `all_tokens` and `sequences`."""
    tokens = float(batch.trained_F.sum())
    found = {"tokens": tokens, "all_tokens": float(len(batch.tokens_F)), "sequences": float(len(batch))}
    if not len(batch):
        return found
    entropy = sampled_entropy(batch)
    return found | {"entropy": entropy, "post_entropy": entropy}


class UpdateMetrics:
    """Gathers the metrics of one update; nothing waits for the device until the end."""

    def __init__(self) -> None:
        self.rate: float | None = None
        self._means: dict[str, list[Tensor]] = defaultdict(list)
        self._weights: list[int] = []
        self._norms: list[float] = []
        self._parts: dict[str, list[float]] = defaultdict(list)
        self._skipped = 0
        self._computed = 0
        self._operations = 0.0

    def add(self, means: dict[str, Tensor], tokens: int) -> None:
        """Add the means over the trained tokens of one micro-batch."""
        for name, value in means.items():
            self._means[name].append(value.detach())
        self._weights.append(tokens)

    def work(self, operations: float, tokens: int = 0) -> None:
        """Count floating-point operations, and tokens that the update computed."""
        self._operations += operations
        self._computed += tokens

    def count(self, norm: float, applied: bool, parts: Mapping[str, float]) -> None:
        """Count one optimizer step: the norm of the gradient, whether weights changed, and the norm of each part of the model."""
        self._norms.append(norm)
        for name, value in parts.items():
            self._parts[name].append(value)
        self._skipped += not applied

    def gathered(self, ranks: Ranks) -> UpdateMetrics:
        """Those of all ranks together, on the driver; the other ranks' own elsewhere."""
        if not ranks.several:
            return self
        whole = UpdateMetrics()
        whole.rate, whole._norms, whole._parts, whole._skipped = self.rate, self._norms, self._parts, self._skipped
        columns = {name: torch.stack(values).cpu() for name, values in self._means.items()}
        own = (columns, self._weights, self._operations, self._computed)
        for their_columns, weights, operations, computed in ranks.gather(own):
            whole.work(operations, computed)
            for name, column in their_columns.items():
                whole._means[name] += column
            whole._weights += weights
        return whole

    def summary(self) -> dict[str, float]:
        """All metrics: means over tokens, gradient norms as means over the optimizer steps whose norm is finite."""
        updates = len(self._norms)
        result = dict.fromkeys(("policy_loss", "clip_fraction", "approx_kl", "ratio_mean", "ratio_max"), 0.0)
        weights = torch.tensor(self._weights, dtype=torch.float64)
        for name, values in self._means.items():
            column = torch.stack(values).double().cpu()
            if name == "policy_loss":  # parts of the optimizer steps' losses: they add up
                result[name] = float(column.sum()) / updates
            elif name == "ratio_max":
                result[name] = float(column.max())
            else:
                result[name] = float((column * weights).sum() / weights.sum())
        return result | {
            "grad_norm": _finite_mean(self._norms),
            **{f"grad_norm/{name}": _finite_mean(norms) for name, norms in self._parts.items()},
            **({} if self.rate is None else {"learning_rate": self.rate}),
            "updates": float(updates - self._skipped),
            "skipped_updates": float(self._skipped),
            "computed_tokens": float(self._computed),
            "operations": self._operations,
        }


def _finite_mean(values: Sequence[float]) -> float:
    finite = [value for value in values if math.isfinite(value)]
    return sum(finite) / max(1, len(finite))


# Which turns of a batch carried the gradient of the policy loss.


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


# Rates of an update: tokens a second, and the share of the GPU's peak that it reached (MFU).


PEAK_FLOPS = {
    "H200": 989e12, "H100": 989e12, "A100": 312e12, "L40S": 362e12, "RTX 4090": 165e12, "B200": 2250e12,
}  # fmt: skip
"""Dense bf16 operations a second by NVIDIA's data sheets (SXM and HGX where there are several forms). The first name that is in the GPU's
name counts."""


def peak_flops(name: str) -> float | None:
    """Peak of a GPU by its name; None if it is not in the table."""
    return next((flops for known, flops in PEAK_FLOPS.items() if known in name), None)


def update_rates(
    metrics: Mapping[str, float], seconds: float, device: torch.device, ranks: int = 1
) -> dict[str, float]:
    """Rates of an update that took so many seconds, scores included.

    Args:
        metrics: Of `LocalLearner.update`: `all_tokens` and `operations`.
        seconds: Wall time.
        device: Where a rank computes.
        ranks: Processes that computed it, each with a device of its own.

    Returns:
        `update_tokens_per_second`, of all tokens, prompts included; and `mfu`, the operations as a share of what the devices do at best in
        bf16, only for a GPU in `PEAK_FLOPS`.
    """
    rates = {"update_tokens_per_second": metrics["all_tokens"] / max(seconds, 1e-9)}
    peak = peak_flops(torch.cuda.get_device_name(device)) if device.type == "cuda" else None
    if peak is not None:
        rates["mfu"] = metrics["operations"] / max(seconds, 1e-9) / (peak * ranks)
    return rates


# Optimizer steps that were not taken because loss or gradient is not finite: what is known of them, and a file to find the cause in.


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
            f"not finite before it: {inputs}" if inputs else "all of its inputs are finite"
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
