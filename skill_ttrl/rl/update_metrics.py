"""Metrics of one policy update, gathered over its micro-batches, optimizer steps and ranks."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from skill_ttrl.rl.batch import RolloutBatch
from skill_ttrl.rl.entropy import sampled_entropy
from skill_ttrl.rl.parallel.ranks import Ranks


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
