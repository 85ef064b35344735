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
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

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


# Attention over a prefix tree, as an attention implementation of transformers.
#
# `install` gives a model the implementation `NAME`. Where a forward pass is given `prefix_tree`, its single row of packed nodes
# is gathered into rows of queries and keys, torch's scaled dot-product attention runs on these, and the results go back to the
# nodes. Every other forward pass is that of `sdpa`.


NAME = "skillttrl_prefix_tree"
UNKNOWN = ("sliding_window", "softcap", "s_aux", "position_bias", "cache")
"""Arguments of an attention that this one does not compute."""


class UnsupportedAttention(ValueError):
    """The model's attention is not plain causal attention."""


def install(model: Any) -> None:
    """Let a transformers model compute prefix trees; without one its forward pass stays that of `sdpa`."""
    AttentionInterface.register(NAME, tree_attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    model.set_attn_implementation(NAME)


def tree_attention(
    module: nn.Module,
    query: Float[Tensor, "1 H F D"],
    key: Float[Tensor, "1 G F D"],
    value: Float[Tensor, "1 G F D"],
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    prefix_tree: PrefixTree | None = None,
    **options: Any,
) -> tuple[Float[Tensor, "1 F H D"], None]:
    """Attention of each node to the nodes on its way from the root, in transformers' form.

    Args:
        module: The attention layer.
        query: H heads of F nodes.
        key: G heads, where G divides H.
        value: As the keys.
        attention_mask: Ignored where there is a tree.
        dropout: Share of the attention weights that are dropped.
        scaling: Of the scores; None: 1 over the root of D.
        prefix_tree: The tree; None: all goes to transformers' `sdpa`.
        options: Other arguments of the layer.

    Raises:
        UnsupportedAttention: the layer asks for a sliding window, a softcap, sinks or a bias.
    """
    if prefix_tree is None:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **options
        )
    if found := [name for name in UNKNOWN if options.get(name) is not None]:
        raise UnsupportedAttention(f"its attention has {' and '.join(found)}")
    heads, width = query.shape[1], value.shape[-1]
    query, key, value = (part[0].transpose(0, 1) for part in (query, key, value))
    outputs = [
        _attend(query, key, value, block, dropout=dropout, scaling=scaling).reshape(-1, heads * width)
        for block in prefix_tree.blocks
    ]
    together = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
    return together.index_select(0, prefix_tree.order_F).view(1, -1, heads, width), None


def _attend(
    query_F_H_D: Tensor,
    key_F_G_D: Tensor,
    value_F_G_D: Tensor,
    block: AttentionBlock,
    *,
    dropout: float,
    scaling: float | None,
) -> Float[Tensor, "B Q H D"]:
    query = _gather(query_F_H_D, block.queries_B_Q)
    key, value = _gather(key_F_G_D, block.keys_B_S), _gather(value_F_G_D, block.keys_B_S)
    mask = None if block.mask_B_Q_S is None else block.mask_B_Q_S[:, None]
    grouped = query.shape[1] != key.shape[1]
    if grouped and mask is not None and query.device.type != "cpu":
        # With a mask, kernels of a GPU want a key head for each query head.
        repeats = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(repeats, dim=1), value.repeat_interleave(repeats, dim=1)
        grouped = False
    out = scaled_dot_product_attention(
        query, key, value, attn_mask=mask, dropout_p=dropout, scale=scaling, is_causal=mask is None, enable_gqa=grouped
    )
    return out.transpose(1, 2)


def _gather(nodes_F_H_D: Tensor, index_B_S: Tensor) -> Float[Tensor, "B H S D"]:
    rows, columns = index_B_S.shape
    _, heads, width = nodes_F_H_D.shape
    picked = nodes_F_H_D.reshape(-1, heads * width).index_select(0, index_B_S.flatten())
    return picked.view(rows, columns, heads, width).transpose(1, 2)


# Check on a few tokens that a model computes prefix trees as it computes the sequences one by one.


TOLERANCE = {torch.float32: 5e-3}
"""Largest relative difference of hidden states; TF32 kernels of a GPU come near it."""
LOW_PRECISION_TOLERANCE = 5e-2
SEQUENCES = ((0, 1, 2, 3, 4, 5, 6), (0, 1, 2, 3, 7, 8), (0, 1, 2, 3, 7, 9, 10, 11), (5, 4, 3), (5,))
"""Two prompts, branches in branches, and sequences of one token."""


def run_tree(decoder: nn.Module, tree: PrefixTree, **inputs: Tensor) -> Tensor:
    """Hidden states of a tree's nodes (1, F, D), from `input_ids` or `inputs_embeds`."""
    # A mask of four dimensions passes through transformers as it is; without one it would make a (F, F) mask of the packed row.
    unused = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=tree.tokens_F.device)
    out = decoder(
        **inputs,
        position_ids=tree.positions_F[None],
        attention_mask=unused,
        prefix_tree=tree,
        use_cache=False,
    )
    hidden: Tensor = out.last_hidden_state
    return hidden


def refuse_config(config: Any, implementation: str) -> str | None:
    """Say why the attention of a transformers text config cannot go over trees; None where only a test can tell."""
    if implementation not in ("sdpa", NAME):
        return f"its attention is {implementation!r}, and packing needs 'sdpa' (model.attn_implementation)"
    others = sorted(set(getattr(config, "layer_types", None) or ()) - {"full_attention"})
    if others:
        return f"it has layers of {', '.join(others)}"
    window = getattr(config, "sliding_window", None)
    return None if window is None else f"it has a sliding window of {window} tokens"


@torch.no_grad()
def refuse_trees(model: Any, decoder: nn.Module, vocabulary: int) -> str | None:
    """Install the attention over trees in a transformers model, or say why it cannot serve.

    Args:
        model: A causal language model without adapters around it, in evaluation mode; left as it was where it is refused.
        decoder: What gives its hidden states.
        vocabulary: Number of token ids.

    Returns:
        None: the model computes trees from now on. Else the reason, as the end of a sentence.
    """
    config = model.config.get_text_config()
    before = config._attn_implementation
    if (reason := refuse_config(config, before)) is not None:
        return reason
    try:
        install(model)
        error = _relative_error(decoder, vocabulary)
    except Exception as problem:  # a model of any code may refuse in any way; the reason is handed on
        model.set_attn_implementation(before)
        return " ".join(f"{type(problem).__name__}: {problem}".split())[:300]
    dtype = next(decoder.parameters()).dtype
    allowed = TOLERANCE.get(dtype, LOW_PRECISION_TOLERANCE)
    if not error <= allowed:
        model.set_attn_implementation(before)
        return f"its hidden states differ by {error:.1e} (relative; at most {allowed:.0e} is allowed)"
    return None


def _relative_error(decoder: nn.Module, vocabulary: int) -> float:
    device = next(decoder.parameters()).device
    rows = [torch.tensor(row) % vocabulary for row in SEQUENCES]
    lengths = torch.tensor([len(row) for row in rows])
    tree, nodes_N_T = build_tree(torch.cat(rows), lengths.cumsum(0) - lengths, lengths)
    packed = run_tree(decoder, tree.to(device), input_ids=tree.tokens_F[None].to(device))[0]
    found, expected = [], []
    for row, nodes_T in zip(rows, nodes_N_T.to(device), strict=True):
        expected.append(decoder(input_ids=row[None].to(device), use_cache=False).last_hidden_state[0])
        found.append(packed[nodes_T[: len(row)]])
    difference = (torch.cat(found) - torch.cat(expected)).float().norm()
    return float(difference / torch.cat(expected).float().norm().clamp(min=1e-12))
