"""Micro-batches, and the split over processes."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from skill_ttrl.rl.batch import EncodedDemonstration, RolloutBatch, pack_demonstrations
from skill_ttrl.rl.micro_batch import cut_micro_batches, split_over_ranks

items = st.lists(
    st.tuples(st.integers(0, 3), st.integers(1, 12)), min_size=1, max_size=30
)  # which prompt, and tokens of the response


def batch_of(shape: list[tuple[int, int]]) -> RolloutBatch:
    """Prompt p has p + 2 tokens."""
    return pack_demonstrations([EncodedDemonstration([7 + p] * (p + 2), [1] * length) for p, length in shape])


def computed(batch: RolloutBatch, rows: torch.Tensor, packed: bool) -> int:
    if not packed:
        return len(rows) * int(batch.lengths_N[rows].max())
    prompts = {batch.prompt_keys[row]: int(batch.prompt_lengths_N[row]) for row in rows.tolist()}
    return sum(prompts.values()) + int(batch.response_lengths_N[rows].sum())


@given(items, st.integers(1, 9), st.booleans())
def test_every_item_is_computed_once_within_the_limits(
    shape: list[tuple[int, int]], sequences: int, packed: bool
) -> None:
    batch = batch_of(shape)
    chosen = torch.arange(len(batch))[:: 2 if len(batch) > 1 else 1]
    parts = cut_micro_batches(batch, chosen, sequences=sequences, packed=packed)
    assert sorted(torch.cat(parts).tolist()) == chosen.tolist()
    for rows in parts:
        assert len(rows) <= sequences
        if packed:  # the plan is an upper bound of the tree
            assert batch.micro_batch(rows, 0, packed=True).computed_tokens <= computed(batch, rows, packed)
        else:
            assert batch.micro_batch(rows, 0).computed_tokens == computed(batch, rows, packed)


def test_items_of_a_prompt_stay_together_where_they_fit() -> None:
    batch = batch_of([(0, 4), (1, 4), (2, 4)] * 4)
    parts = cut_micro_batches(batch, torch.arange(12), sequences=5, packed=True)
    assert [{batch.prompt_keys[row] for row in rows.tolist()} for rows in parts] == [{0}, {1}, {2}]
    assert cut_micro_batches(batch, torch.arange(0), sequences=5, packed=True) == []


@given(items, st.integers(1, 5), st.booleans())
def test_ranks_share_the_items(shape: list[tuple[int, int]], ranks: int, packed: bool) -> None:
    batch = batch_of(shape)
    split = split_over_ranks(batch, torch.arange(len(batch)), ranks, packed=packed)
    assert len(split) == ranks and sorted(torch.cat(split).tolist()) == list(range(len(batch)))
    loads = [computed(batch, rows, True) if len(rows) else 0 for rows in split]
    if not packed:
        loads = [int(batch.lengths_N[rows].sum()) for rows in split]
    largest = max(int(length) for length in batch.lengths_N)
    # A piece is at most a share and one item more, and goes to the rank with the least.
    assert max(loads) <= 2 * (sum(loads) / ranks + largest)
