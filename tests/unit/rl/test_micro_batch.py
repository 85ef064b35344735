"""Micro-batches, and the split over processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from skill_ttrl.rl import micro_batch as module
from skill_ttrl.rl.batch import EncodedDemonstration, RolloutBatch, pack_demonstrations
from skill_ttrl.rl.learner import update_rates
from skill_ttrl.rl.micro_batch import SharedPrefixes, build_tree, cut_micro_batches, lay_out, split_over_ranks
from skill_ttrl.rl.policy import Policy

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
            assert lay_out(batch, rows, 0, packed=True).computed_tokens <= computed(batch, rows, packed)
        else:
            assert lay_out(batch, rows, 0).computed_tokens == computed(batch, rows, packed)


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


# Prefix trees: every token of every sequence is a node on its own way, and every node's attention is computed once.


sequences = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=9), min_size=1, max_size=12)


def tree_of(rows: list[list[int]]) -> SharedPrefixes:
    lengths = torch.tensor([len(row) for row in rows])
    return build_tree(torch.tensor([token for row in rows for token in row]), lengths.cumsum(0) - lengths, lengths)


@given(sequences)
def test_nodes_are_the_prefixes(rows: list[list[int]]) -> None:
    tree, nodes_N_T = tree_of(rows)
    ways = {tuple(row[:end]): None for row in rows for end in range(1, len(row) + 1)}
    assert len(tree) == len(ways)
    node_of: dict[tuple[int, ...], int] = {}
    for row, nodes in zip(rows, nodes_N_T.tolist(), strict=True):
        for end in range(1, len(row) + 1):
            node = nodes[end - 1]
            assert int(tree.tokens_F[node]) == row[end - 1] and int(tree.positions_F[node]) == end - 1
            assert node_of.setdefault(tuple(row[:end]), node) == node
    assert sorted(node_of.values()) == list(range(len(tree)))


@pytest.mark.parametrize("small", [0, 2048])
@given(rows=sequences)
def test_each_node_asks_once_and_sees_its_ancestors(small: int, rows: list[list[int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "SMALL_BLOCK", small)
        tree, nodes_N_T = tree_of(rows)
    ancestors = {}
    for row, nodes in zip(rows, nodes_N_T.tolist(), strict=True):
        for end in range(1, len(row) + 1):
            ancestors[nodes[end - 1]] = nodes[:end]
    queries: list[int] = []
    seen: list[list[int]] = []
    for block in tree.blocks:
        if (mask := block.mask_B_Q_S) is None:
            assert torch.equal(block.queries_B_Q, block.keys_B_S)
            mask = torch.ones(*block.queries_B_Q.shape, block.keys_B_S.shape[1], dtype=torch.bool).tril()
        for asked, keys, visible in zip(block.queries_B_Q, block.keys_B_S, mask, strict=True):
            queries += asked.tolist()
            seen += [keys[allowed].tolist() for allowed in visible]
    for node, place in enumerate(tree.order_F.tolist()):
        assert queries[place] == node and seen[place] == ancestors[node]


def test_rows_of_very_different_lengths_are_not_padded_to_the_longest() -> None:
    tree, _ = tree_of([[1] * 4000, *([2, row] * 3 for row in range(4)), *([1] * 2000 + [4, row] for row in range(4))])
    assert sum(block.queries_B_Q.numel() for block in tree.blocks) <= 1.5 * len(tree)


def test_what_sequences_share_is_computed_once() -> None:
    prompt = list(range(10))
    tree, _ = tree_of([[*prompt, 20, 21], [*prompt, 20, 22], [*prompt, 20, 21], prompt])
    assert len(tree) == 13
    assert [block.queries_B_Q.shape[0] for block in tree.blocks] == [
        1,
        1,
    ]  # a root and one branch; the others are covered


# Operations counted against those that torch counts as it computes.


def counted(run: Callable[[], Any]) -> int:
    with FlopCounterMode(display=False) as counter:
        run()
    return int(counter.get_total_flops())


@pytest.mark.parametrize("adapters", [False, True])
@pytest.mark.parametrize("packed", [False, True])
def test_operations_are_those_that_torch_counts(
    adapters: bool,
    packed: bool,
    make_policy: Callable[..., Policy],
    make_lora_policy: Callable[..., Policy],
    make_batch: Callable[..., RolloutBatch],
) -> None:
    policy = (make_lora_policy if adapters else make_policy)()
    batch = make_batch(prompts=4, tries=6)
    micro_batch = lay_out(batch, torch.arange(len(batch)), 0, packed=packed)
    # Scores of queries and keys are a share that torch counts by kernel, padded and not causal: here they are counted apart.
    scores = 4 * policy.work.attention * micro_batch.attention_pairs
    with torch.no_grad():
        found = counted(lambda: policy.token_logprobs(micro_batch))
    assert found == pytest.approx(policy.work.forward(micro_batch) - scores, rel=0.01)

    def learn() -> None:
        policy.token_logprobs(micro_batch)[0].sum().backward()  # type: ignore[no-untyped-call]

    # The first layer's input needs no gradient under adapters, and the frozen head sums its gradient as it goes forward.
    assert counted(learn) == pytest.approx(policy.work.update(micro_batch) - 3 * scores, rel=0.1 if adapters else 0.01)


def test_rates_know_a_gpu_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = {"all_tokens": 3000.0, "operations": 989e12}
    assert update_rates(metrics, 2.0, torch.device("cpu")) == {"update_tokens_per_second": 1500.0}
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H100 80GB HBM3")
    assert update_rates(metrics, 2.0, torch.device("cuda"), 2)["mfu"] == pytest.approx(0.25)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Another")
    assert "mfu" not in update_rates(metrics, 2.0, torch.device("cuda"))
