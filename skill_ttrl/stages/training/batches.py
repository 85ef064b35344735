"""The demonstrations of each supervised step: so many, or as many as a budget of tokens takes.

A step's batch follows from the data, the config, the seed and the step alone, so a resumed run sees what it would have seen.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import lru_cache, partial

import numpy as np

from skill_ttrl.config import SFTConfig
from skill_ttrl.rl.pack import EncodedDemonstration
from skill_ttrl.types import derive_seed

Batch = list[EncodedDemonstration]
SORT_CHUNK = 1024
"""Shuffled demonstrations that are sorted by length together."""


def batch_selector(data: Sequence[EncodedDemonstration], config: SFTConfig, seed: int) -> Callable[[int], Batch]:
    """The batch of a step, as a function of its number: each epoch is all demonstrations once, in the order of `sft.shuffle`."""
    if config.batch_tokens is None:
        return lambda step: [data[place] for place in places_of_step(len(data), config, step, seed)]
    if not data:
        raise ValueError("There is nothing to imitate.")
    lengths = [len(example.prompt_ids) + len(example.response_ids) for example in data]
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
