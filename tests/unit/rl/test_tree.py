"""Prefix trees: every token of every sequence is a node on its own way, and every node's attention is computed once."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from skill_ttrl.rl import tree as module
from skill_ttrl.rl.tree import SharedPrefixes, build_tree

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
