"""Token sequences as a prefix tree: what several sequences begin with is one path of nodes, computed once.

Linear layers see the nodes alone, packed into one row without padding. Attention goes row by row: each row is one way from the
root of the tree to a node that no other way passes through; it asks for the nodes that no earlier row has asked for.

Suffixes: _N sequences, _T their positions, _F nodes, _B rows of one block, _Q queries of a row, _S keys of a row.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import torch
from jaxtyping import Bool, Int
from torch import Tensor

MAX_BLOCKS = 4
"""Most blocks of rows of one kind: a block pads its rows to its longest, and each block costs a few kernels a layer."""
SMALL_BLOCK = 2048
"""Queries, padding counted, for which one block is cheaper than two."""

T = TypeVar("T")


@dataclass(frozen=True)
class AttentionBlock:
    """Rows whose attention is computed together, padded on the right."""

    queries_B_Q: Int[Tensor, "B Q"]
    """Node of each query."""
    keys_B_S: Int[Tensor, "B S"]
    """Nodes from the root on; a query at position p sees those at positions 0 to p."""
    positions_B_Q: Int[Tensor, "B Q"] | None
    """Position of each query; None: rows that begin at a root, whose queries are their keys."""

    @cached_property
    def mask_B_Q_S(self) -> Bool[Tensor, "B Q S"] | None:
        """Keys that each query sees, computed once for all layers, on the device that the block is on; None as `positions_B_Q`."""
        if self.positions_B_Q is None:
            return None
        return torch.arange(self.keys_B_S.shape[1], device=self.keys_B_S.device) <= self.positions_B_Q[:, :, None]


@dataclass(frozen=True, slots=True)
class PrefixTree:
    """Nodes of a prefix tree, a parent always before its children, and the rows of their attention."""

    tokens_F: Int[Tensor, " F"]
    positions_F: Int[Tensor, " F"]
    """Depth of each node: 0 at a root."""
    blocks: tuple[AttentionBlock, ...]
    order_F: Int[Tensor, " F"]
    """Where each node's query stands among those of all blocks, padding counted."""

    def __len__(self) -> int:
        return len(self.tokens_F)

    def to(self, device: torch.device) -> PrefixTree:
        """Move to another device."""
        return moved(self, device)


class SharedPrefixes(NamedTuple):
    """A tree and the way of each sequence through it."""

    tree: PrefixTree
    nodes_N_T: Int[Tensor, "N T"]
    """Node of each token; 0 beyond a sequence's end."""


def moved(value: T, device: torch.device) -> T:
    """The same dataclass, tuple or tensor with every tensor in it on `device`."""
    found: Any = value
    if isinstance(value, Tensor):
        found = value.to(device, non_blocking=True)
    elif isinstance(value, tuple):
        found = tuple(moved(part, device) for part in value)
    elif hasattr(value, "__dataclass_fields__"):
        found = type(value)(*(moved(getattr(value, field.name), device) for field in fields(found)))
    return found  # type: ignore[no-any-return]


def build_tree(
    tokens_F: Int[Tensor, " F"], starts_N: Int[Tensor, " N"], lengths_N: Int[Tensor, " N"]
) -> SharedPrefixes:
    """Merge what sequences begin with.

    Args:
        tokens_F: Tokens, on the CPU.
        starts_N: Where each sequence begins among them.
        lengths_N: Tokens in each sequence, at least 1.
    """
    order = _reverse_lexicographic(tokens_F, starts_N, lengths_N)
    lengths = lengths_N[order, None]
    columns_T = torch.arange(int(lengths.max()))
    inside_N_T = columns_T < lengths
    sorted_N_T = tokens_F[(starts_N[order, None] + columns_T).clamp(max=len(tokens_F) - 1)].masked_fill(~inside_N_T, -1)

    shared_N = _shared_with_the_row_above(sorted_N_T)
    new_N_T = inside_N_T & (columns_T >= shared_N)
    ids_N_T = (new_N_T.flatten().cumsum(0) - 1).view_as(new_N_T)
    # A token that is not new stands in the nearest row above in which it is.
    rows = torch.arange(len(order))[:, None]
    owner_N_T = torch.where(columns_T >= shared_N, rows, 0).cummax(0).values
    nodes_N_T = ids_N_T.gather(0, owner_N_T).masked_fill(~inside_N_T, 0)

    blocks, order_F = _blocks(nodes_N_T, shared_N.squeeze(1), lengths.squeeze(1))
    tree = PrefixTree(sorted_N_T[new_N_T], columns_T.expand_as(new_N_T)[new_N_T], blocks, order_F)
    return SharedPrefixes(tree, nodes_N_T[torch.argsort(order)])


def _reverse_lexicographic(tokens_F: Tensor, starts_N: Tensor, lengths_N: Tensor) -> Int[Tensor, " N"]:
    """Order of the sequences: neighbours share the most, and a sequence stands before those it begins with."""
    text = tokens_F.numpy().astype(">u4").tobytes()  # bytes compare as the numbers do
    ends_N = starts_N + lengths_N
    keys = [text[4 * start : 4 * end] for start, end in zip(starts_N.tolist(), ends_N.tolist(), strict=True)]
    return torch.tensor(sorted(range(len(keys)), key=keys.__getitem__, reverse=True))


def _shared_with_the_row_above(tokens_N_T: Int[Tensor, "N T"]) -> Int[Tensor, "N 1"]:
    """How many tokens each row begins with that the row above has too; 0 for the first."""
    differs_N_T = (tokens_N_T[1:] != tokens_N_T[:-1]) | (tokens_N_T[1:] < 0)
    ends = torch.ones(len(differs_N_T), 1, dtype=torch.bool)
    shared_N = torch.cat([differs_N_T, ends], dim=1).to(torch.int8).argmax(1)  # the first of the largest
    return torch.cat([torch.zeros(1, dtype=torch.long), shared_N])[:, None]


def _blocks(
    nodes_N_T: Int[Tensor, "N T"], shared_N: Int[Tensor, " N"], lengths_N: Int[Tensor, " N"]
) -> tuple[tuple[AttentionBlock, ...], Int[Tensor, " F"]]:
    """Rows that have nodes of their own, those of roots and then branches, in blocks of similar lengths; and each node's place."""
    own_N = lengths_N - shared_N
    blocks, nodes, places, start = [], [], [], 0
    for is_root in (True, False):
        rows = ((own_N > 0) & ((shared_N == 0) == is_root)).nonzero().squeeze(1)
        rows = rows[torch.argsort(own_N[rows], descending=True, stable=True)]
        for chosen in _split_by_length(rows, own_N):
            keys_B_S = nodes_N_T[chosen, : int(lengths_N[chosen].max())]
            columns_Q = torch.arange(int(own_N[chosen[0]]))
            positions_B_Q = shared_N[chosen, None] + columns_Q
            queries_B_Q = keys_B_S.gather(1, positions_B_Q.clamp(max=keys_B_S.shape[1] - 1))
            blocks.append(AttentionBlock(queries_B_Q, keys_B_S, None if is_root else positions_B_Q))
            real_B_Q = columns_Q < own_N[chosen, None]
            nodes.append(queries_B_Q[real_B_Q])
            places.append(start + real_B_Q.flatten().nonzero().squeeze(1))
            start += real_B_Q.numel()
    order_F = torch.empty(int(own_N.sum()), dtype=torch.long)
    order_F[torch.cat(nodes)] = torch.cat(places)
    return tuple(blocks), order_F


def _split_by_length(rows: Int[Tensor, " B"], lengths_N: Int[Tensor, " N"]) -> list[Int[Tensor, " B"]]:
    """Rows, longest first, cut where they become shorter than half of their block's first."""
    parts: list[Tensor] = []
    while len(rows):
        similar, longest = len(rows), int(lengths_N[rows[0]])
        if len(rows) * longest > SMALL_BLOCK and len(parts) + 1 < MAX_BLOCKS:
            similar = int((2 * lengths_N[rows] > longest).sum())
        parts.append(rows[:similar])
        rows = rows[similar:]
    return parts
