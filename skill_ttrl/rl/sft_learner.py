"""Supervised cold start: imitate demonstrations, loss on the responses only."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator

from skill_ttrl.config import SFTConfig
from skill_ttrl.rl.batch import EncodedDemonstration, pack_demonstrations
from skill_ttrl.rl.losses import Denominators, aggregate
from skill_ttrl.rl.optim import build_optimizer, learning_rate, shared_rows, why_skipped
from skill_ttrl.rl.parallel.ranks import ALONE, Ranks, own_micro_batches
from skill_ttrl.rl.policy import Policy
from skill_ttrl.types import derive_seed

GRAD_CLIP = 1.0
"""Largest norm of a gradient, for the cold start and DAgger; a longer one is scaled down to it."""


class SFTLearner:
    """Maximum likelihood of response tokens.

    Args:
        policy: What learns.
        config: How; `config.steps` is the length of the learning-rate schedule.
        accelerator: Precision (autocast, fp16's scaler).
        ranks: Processes that call each method at the same time with the same arguments; each computes its share of a batch.
        weight_decay: Decoupled, of matrices only.
        grad_clip: Largest norm of a gradient; a longer one is scaled down to it.
    """

    def __init__(
        self,
        policy: Policy,
        config: SFTConfig,
        accelerator: Accelerator,
        ranks: Ranks = ALONE,
        *,
        weight_decay: float = 0.0,
        grad_clip: float = GRAD_CLIP,
    ) -> None:
        self.policy = policy
        self._grad_clip = grad_clip
        self.skipped: list[str] = []
        """Why the latest step was not taken, as `LocalLearner.skipped`."""
        self._ranks = ranks
        self.config = config
        self._accelerator = accelerator
        policy.release_weights()  # the optimizer holds this rank's shards
        self._optimizer = build_optimizer(
            policy.model,
            learning_rate=config.learning_rate,
            muon_learning_rate=config.muon_learning_rate if config.optimizer == "muon" else None,
            betas=config.betas,
            weight_decay=weight_decay,
            scaler=accelerator.scaler,
            ranks=ranks,
            shared=shared_rows(policy),
        )

    def step(self, demonstrations: Sequence[EncodedDemonstration], step: int, *, seed: int = 0) -> dict[str, float]:
        """One optimizer step on a batch of (prompt_ids, response_ids).

        Args:
            demonstrations: The batch; the loss is the mean over all its response tokens.
            step: Number of the step, 0 for the first; places it on the learning-rate schedule.
            seed: The run's seed; only dropout draws from it.

        Returns:
            `loss` (nats a token), `grad_norm`, `learning_rate` (AdamW's), `tokens`, and `skipped_updates`: 1 where the
            step was refused because loss or gradient was not finite.
        """
        config = self.config
        batch = pack_demonstrations(demonstrations)
        tokens = int(batch.trained_F.sum())
        denominators = Denominators(tokens, len(batch), float(batch.response_lengths_N.max()))
        fraction = rate_fraction(step, config)
        self._optimizer.set_lr(fraction)
        total = torch.zeros((), device=self.policy.device)
        self.policy.release_weights()
        with self.policy.training(derive_seed(seed, "dropout", "sft", step, *self._ranks.apart)):
            for rows, counts in own_micro_batches(
                self.policy, batch, ranks=self._ranks, sequences=config.micro_batch_size
            ):
                on_device = self.policy.lay_out(batch, rows)
                with self._accelerator.autocast():
                    log_probs, _ = self.policy.token_logprobs(on_device)
                loss = aggregate(-log_probs, on_device.response_mask_N_R, "token-mean", denominators)
                self._optimizer.backward(loss if counts else loss * 0.0)
                total += loss.detach() * counts
            self._ranks.sum_([total])
            norm, applied = self._optimizer.step(total, self._grad_clip)
        overflow = self._accelerator.scaler is not None and math.isfinite(float(total))
        self.skipped = [] if applied or overflow else [why_skipped(batch, torch.arange(len(batch)), float(total), norm)]
        return {
            "loss": float(total),
            "grad_norm": norm,
            "learning_rate": fraction * config.learning_rate,
            "tokens": float(tokens),
            "skipped_updates": float(not applied),
        }

    def state_dict(self) -> dict[str, Any]:
        """State for an exact resume, without the model's weights and the step number."""
        return {"optimizer": self._optimizer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put back what `state_dict` gave; the model's weights are loaded apart."""
        self._optimizer.load_state_dict(state["optimizer"])


def rate_fraction(step: int, config: SFTConfig) -> float:
    """The rate of a step as a share of the peak: one schedule, or two where the config restarts it."""
    begin, length, peak = 0, config.steps, 1.0
    if config.lr_restart_at is not None:
        restart = round(config.lr_restart_at * config.steps)
        if step < restart:
            length = restart
        else:
            begin, length, peak = restart, config.steps - restart, config.lr_restart_scale
    shape = config.warmup_steps, config.lr_scheduler, config.min_lr_ratio, config.decay_from
    return learning_rate(step - begin, length, peak, *shape)


# The demonstrations of each supervised step: so many, or as many as a budget of tokens takes.
#
# A step's batch follows from the data, the config, the seed and the step alone, so a resumed run sees what it would have seen.


Batch = list[EncodedDemonstration]
SORT_CHUNK = 1024
"""Shuffled demonstrations that are sorted by length together."""


def batch_selector(data: Sequence[EncodedDemonstration], config: SFTConfig, seed: int) -> Callable[[int], Batch]:
    """The batch of a step, as a function of its number: each epoch is all demonstrations once, in the order of `sft.shuffle`."""
    if config.batch_tokens is None:
        return lambda step: [data[place] for place in places_of_step(len(data), config, step, seed)]
    if not data:
        raise ValueError("There is nothing to imitate.")
    lengths = [example.length for example in data]
    starts = [0]  # the first step of each epoch: epochs differ by a few batches
    epoch_batches = lru_cache(maxsize=2)(partial(batches_of_epoch, lengths, config, seed))

    def batch_of(step: int) -> Batch:
        while starts[-1] <= step:
            starts.append(starts[-1] + len(epoch_batches(len(starts) - 1)))
        epoch = bisect_right(starts, step) - 1
        return [data[place] for place in epoch_batches(epoch)[step - starts[epoch]]]

    return batch_of


def places_of_step(count: int, config: SFTConfig, step: int, seed: int) -> list[int]:
    """Positions of the `sft.batch_size` demonstrations of a step; a batch may reach into the next epoch."""
    start = step * config.batch_size
    if not config.shuffle:
        return [(start + place) % count for place in range(config.batch_size)]
    places: list[int] = []
    while len(places) < config.batch_size:
        epoch, offset = divmod(start + len(places), count)
        order = _shuffle(count, seed, epoch)
        places += order[offset : offset + config.batch_size - len(places)].tolist()
    return places


def batches_of_epoch(lengths: Sequence[int], config: SFTConfig, seed: int, epoch: int) -> list[list[int]]:
    """Positions of the demonstrations of each batch of an epoch, each within `sft.batch_tokens` unless it holds one alone.

    Shuffled, they are sorted by length in chunks, and so cut; the batches are shuffled too, or a chunk's short ones would always
    come first. In the given order they are cut as they stand.
    """
    assert config.batch_tokens is not None
    if not config.shuffle:
        return _cut(range(len(lengths)), lengths, config.batch_tokens)
    order = _shuffle(len(lengths), seed, epoch).tolist()
    chunks = [order[first : first + SORT_CHUNK] for first in range(0, len(order), SORT_CHUNK)]
    batches = [
        batch
        for chunk in chunks
        for batch in _cut(sorted(chunk, key=lengths.__getitem__), lengths, config.batch_tokens)
    ]
    return [batches[place] for place in _shuffle(len(batches), seed, epoch, "batches")]


def _cut(places: Sequence[int], lengths: Sequence[int], budget: int) -> list[list[int]]:
    batches: list[list[int]] = []
    left = 0
    for place in places:
        if not batches or lengths[place] > left:
            batches.append([])
            left = budget
        batches[-1].append(place)
        left -= lengths[place]
    return batches


def _shuffle(count: int, seed: int, epoch: int, *what: str) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.random.default_rng(derive_seed(seed, "sft", epoch, *what)).permutation(count)
