"""Shares of work for the ranks of a run: the same on every rank, and balanced by cost."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from jaxtyping import Int
from torch import Tensor

from skill_ttrl.rl.batch import RolloutBatch
from skill_ttrl.rl.forward.micro_batch import cut_micro_batches, split_over_ranks
from skill_ttrl.rl.parallel.ranks import Ranks
from skill_ttrl.rl.policy import Policy


def own_micro_batches(
    policy: Policy,
    batch: RolloutBatch,
    indices: Int[Tensor, " M"],
    ranks: Ranks,
    *,
    sequences: int | None,
    tokens: int | None = None,
) -> Iterator[tuple[Int[Tensor, " N"], bool]]:
    """Items of each micro-batch that this rank computes, and whether they count.

    Sharded weights take collectives in every forward pass, so there every rank has the same number of micro-batches: one with fewer
    of its own computes the shortest item over again, which does not count.

    Args:
        policy: What computes them.
        batch: What all ranks have.
        indices: Items that all ranks compute together; the shares are balanced by tokens.
        ranks: All of them call this at the same time.
        sequences: Most items of a micro-batch; None: any number.
        tokens: Most tokens of a micro-batch, see `cut_micro_batches`; None: any number.
    """
    share = indices
    if ranks.several:
        share = split_over_ranks(batch, indices, ranks.size, packed=policy.packs)[ranks.rank]
    own = cut_micro_batches(batch, share, sequences=sequences, tokens=tokens, packed=policy.packs)
    count = len(own) if policy.sharding is None else ranks.largest(len(own))
    yield from ((rows, True) for rows in own)
    if count > len(own):
        shortest = indices[batch.lengths_N[indices].argmin()].unsqueeze(0)
        yield from ((shortest, False) for _ in range(len(own), count))


def even_cuts(count: int, parts: int) -> list[range]:
    """`count` things in their order, cut into `parts` runs whose lengths differ by at most one."""
    cuts = [part * count // parts for part in range(parts + 1)]
    return [range(first, last) for first, last in pairwise(cuts)]
