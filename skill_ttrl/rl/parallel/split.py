"""Shares of work for the ranks of a run: the same on every rank, and balanced by cost."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from itertools import pairwise

import torch
from jaxtyping import Int
from torch import Tensor

from skill_ttrl.rl.batch import RolloutBatch
from skill_ttrl.rl.parallel.ranks import Ranks


def own_micro_batches(
    batch: RolloutBatch, indices: Int[Tensor, " M"], size: int, ranks: Ranks, *, in_step: bool
) -> Iterator[tuple[Int[Tensor, " N"], bool]]:
    """Items of each micro-batch that this rank computes, and whether they count.

    Args:
        batch: What all ranks have.
        indices: Items that all ranks compute together; the shares are balanced by tokens.
        size: Most items of a micro-batch.
        ranks: All of them call this at the same time.
        in_step: Every rank has the same number of micro-batches, as the collectives of sharded weights need it: one with fewer of
            its own computes the shortest item over again, which does not count.
    """
    share = indices
    if ranks.several:
        places = balanced(batch.lengths_N[indices].tolist(), ranks.size)[ranks.rank]
        share = indices[torch.tensor(places, dtype=torch.long)]
    own = batch.micro_batch_rows(share, size)
    count = ranks.largest(len(own)) if in_step else len(own)
    yield from ((rows, True) for rows in own)
    if count > len(own):
        shortest = indices[batch.lengths_N[indices].argmin()].unsqueeze(0)
        yield from ((shortest, False) for _ in range(len(own), count))


def balanced(costs: Sequence[float], parts: int) -> list[list[int]]:
    """Places of the items of each part, so that the parts cost about the same.

    Longest processing time first (Graham 1969): the next costliest item goes to the cheapest part so far. The costliest part is at
    most 4/3 of the best split. Ties go to the lower place and the lower part, so every rank finds the same split.

    Args:
        costs: cost of each item, such as its tokens.
        parts: number of parts, at least 1; some are empty where there are fewer items.

    Returns:
        For each part the places of its items, ascending. Each item is in exactly one part.
    """
    found: list[list[int]] = [[] for _ in range(parts)]
    heap = [(0.0, part) for part in range(parts)]
    for place in sorted(range(len(costs)), key=lambda place: (-costs[place], place)):
        total, part = heapq.heappop(heap)
        found[part].append(place)
        heapq.heappush(heap, (total + costs[place], part))
    return [sorted(places) for places in found]


def even_cuts(count: int, parts: int) -> list[range]:
    """`count` things in their order, cut into `parts` runs whose lengths differ by at most one."""
    cuts = [part * count // parts for part in range(parts + 1)]
    return [range(first, last) for first, last in pairwise(cuts)]
