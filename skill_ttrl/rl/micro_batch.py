"""Items of a batch as one forward pass takes them: rows padded on the right, or a prefix tree without padding.

Suffixes: _N items, _T positions of prompt and response, _R positions of the response alone, _Q positions at which something is
predicted, _K trained tokens.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
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

from skill_ttrl.rl.batch import RolloutBatch

# Token sequences as a prefix tree: what several sequences begin with is one path of nodes, computed once.
#
# Linear layers see the nodes alone, packed into one row without padding. Attention goes row by row: each row is one way from the
# root of the tree to a node that no other way passes through; it asks for the nodes that no earlier row has asked for.
#
# Suffixes: _N sequences, _T their positions, _F nodes, _B rows of one block, _Q queries of a row, _S keys of a row.


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
    """Position of each node's query among those of all blocks, padding counted."""

    def __len__(self) -> int:
        return len(self.tokens_F)


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
    """Length of the prefix that each row shares with the row above; 0 for the first."""
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
# `install_trees` gives a model the implementation `NAME`. Where a forward pass is given `prefix_tree`, its single row of packed nodes
# is gathered into rows of queries and keys, torch's scaled dot-product attention runs on these, and the results go back to the
# nodes. Every other forward pass is that of `sdpa`.


NAME = "skillttrl_prefix_tree"
UNKNOWN = ("sliding_window", "softcap", "s_aux", "position_bias", "cache")
"""Arguments of an attention that this one does not compute."""


class UnsupportedAttention(ValueError):
    """The model's attention is not plain causal attention."""


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


@torch.no_grad()
def install_trees(model: Any, decoder: nn.Module, vocabulary: int) -> str | None:
    """Let a transformers model compute prefix trees, or say why it cannot; without a tree its forward pass stays that of `sdpa`.

    Args:
        model: A causal language model without adapters around it, in evaluation mode; left as it was where it is refused.
        decoder: What gives its hidden states.
        vocabulary: Number of token ids.

    Returns:
        None: the model computes trees from now on. Else the reason, as the end of a sentence.
    """
    config = model.config.get_text_config()
    before = config._attn_implementation
    if before not in ("sdpa", NAME):
        return f"its attention is {before!r}, and packing needs 'sdpa'"
    if others := sorted(set(getattr(config, "layer_types", None) or ()) - {"full_attention"}):
        return f"it has layers of {', '.join(others)}"
    if (window := getattr(config, "sliding_window", None)) is not None:
        return f"it has a sliding window of {window} tokens"
    try:
        AttentionInterface.register(NAME, tree_attention)
        AttentionMaskInterface.register(NAME, sdpa_mask)
        model.set_attn_implementation(NAME)
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
    packed = run_tree(decoder, moved(tree, device), input_ids=tree.tokens_F[None].to(device))[0]
    found, expected = [], []
    for row, nodes_T in zip(rows, nodes_N_T.to(device), strict=True):
        expected.append(decoder(input_ids=row[None].to(device), use_cache=False).last_hidden_state[0])
        found.append(packed[nodes_T[: len(row)]])
    difference = (torch.cat(found) - torch.cat(expected)).float().norm()
    return float(difference / torch.cat(expected).float().norm().clamp(min=1e-12))


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Tokens of N items, where their trained tokens are predicted, and the values that the loss needs of each."""

    tokens_N_T: Int[Tensor, "N T"]
    """Padded items, in which attention is causal, so no real token sees padding; with a tree its nodes, (1, F)."""
    positions_Q: Int[Tensor, " Q"]
    """Where in these, flattened, trained tokens are predicted: one position before each. No position twice."""
    rows_K: Int[Tensor, " K"]
    """Which of these positions predicts each trained token: nodes of a tree may predict several."""
    targets_K: Int[Tensor, " K"]
    """The token that is scored at each: the trained token, or its label (`RolloutBatch.labels_F`)."""
    slots_K: Int[Tensor, " K"]
    """Where each belongs in the flattened (N, R)."""
    response_mask_N_R: Float[Tensor, "N R"]
    """1 at trained tokens, 0 elsewhere."""
    old_log_probs_N_R: Float[Tensor, "N R"]
    advantages_N_R: Float[Tensor, "N R"]
    """0 where nothing is trained, as all matrices here."""
    ref_log_probs_N_R: Float[Tensor, "N R"] | None = None
    values_N_R: Float[Tensor, "N R"] | None = None
    returns_N_R: Float[Tensor, "N R"] | None = None
    weights_N_R: Float[Tensor, "N R"] | None = None
    tree: PrefixTree | None = None
    """None: the items are padded."""
    allowed: tuple[LimitedTokens, ...] = ()
    """The trained tokens by the part of the vocabulary that they were drawn from; empty: all from the whole."""

    @property
    def trained_tokens(self) -> int:
        """Number of trained tokens (K)."""
        return len(self.targets_K)

    @property
    def computed_tokens(self) -> int:
        """Tokens that the model computes, padding counted."""
        return self.tokens_N_T.numel()

    @property
    def attention_pairs(self) -> int:
        """Pairs of a query and a key that it sees, padding counted."""
        if self.tree is not None:
            return int(self.tree.positions_F.sum()) + len(self.tree)
        rows, length = self.tokens_N_T.shape
        return rows * length * (length + 1) // 2

    def spread(self, values_K: Float[Tensor, " K"]) -> Float[Tensor, "N R"]:
        """Values of the trained tokens where these stand; 0 where nothing is trained."""
        shape = self.response_mask_N_R
        return torch.zeros_like(shape).flatten().index_copy(0, self.slots_K, values_K).view_as(shape)

    def to(self, device: torch.device) -> MicroBatch:
        """Move to another device."""
        return self if self.tokens_N_T.device == device else moved(self, device)


MATRICES = tuple(
    field.name for field in fields(MicroBatch) if field.name.endswith("_N_R") and field.name != "response_mask_N_R"
)
"""Fields of a `MicroBatch` that hold the values of a batch's field of the same name, with _F."""


def lay_out(batch: RolloutBatch, rows: Int[Tensor, " N"], pad_id: int, *, packed: bool = False) -> MicroBatch:
    """Lay the items at `rows` out for the model: padded on the right with `pad_id`, or `packed` as a prefix tree.

    A tree leaves out what comes after an item's last prediction.
    """
    starts_N_1, prompts_N_1 = batch.starts_N[rows, None], batch.prompt_lengths_N[rows, None]
    responses_N_1, end = batch.response_lengths_N[rows, None], len(batch.tokens_F) - 1
    columns_R = torch.arange(int(responses_N_1.max()))
    sources_N_R = (starts_N_1 + prompts_N_1 + columns_R).clamp(max=end)
    mask_N_R = batch.trained_F[sources_N_R] & (columns_R < responses_N_1)
    predicting_N_R = prompts_N_1 + columns_R - 1  # position, in its item, of the token before each response token
    if packed:
        last_N_1 = torch.where(mask_N_R, columns_R, 0).amax(dim=1, keepdim=True)
        tree, nodes_N_T = build_tree(batch.tokens_F, batch.starts_N[rows], (prompts_N_1 + last_N_1).squeeze(1))
        tokens_N_T = tree.tokens_F[None]
        positions_N_R = nodes_N_T.gather(1, predicting_N_R.clamp(max=nodes_N_T.shape[1] - 1))
    else:
        tree, lengths_N_1 = None, prompts_N_1 + responses_N_1
        columns_T = torch.arange(int(lengths_N_1.max()))
        tokens_N_T = batch.tokens_F[(starts_N_1 + columns_T).clamp(max=end)]
        tokens_N_T = tokens_N_T.masked_fill(columns_T >= lengths_N_1, pad_id)
        positions_N_R = torch.arange(len(rows))[:, None] * len(columns_T) + predicting_N_R
    positions_Q, rows_K = torch.unique(positions_N_R[mask_N_R], return_inverse=True)
    places_K = sources_N_R[mask_N_R]
    targets_K = (batch.tokens_F if batch.labels_F is None else batch.labels_F)[places_K]
    values: dict[str, Any] = {}
    for name in MATRICES:
        values_F = getattr(batch, f"{name.removesuffix('_N_R')}_F")
        values[name] = None if values_F is None else values_F[sources_N_R].masked_fill(~mask_N_R, 0.0)
    return MicroBatch(
        tokens_N_T=tokens_N_T,
        positions_Q=positions_Q,
        rows_K=rows_K,
        targets_K=targets_K,
        slots_K=mask_N_R.flatten().nonzero().squeeze(1),
        response_mask_N_R=mask_N_R.float(),
        tree=tree,
        allowed=limited_tokens(batch, places_K, rows_K, targets_K),
        **values,
    )


# Which items go through the model together, and which of several processes computes them: plans alone, no tensors of tokens.


def cut_micro_batches(
    batch: RolloutBatch,
    indices: Int[Tensor, " M"],
    *,
    sequences: int,
    packed: bool = False,
) -> list[Int[Tensor, " N"]]:
    """Cut items into micro-batches.

    Padded items are taken shortest first. Packed ones go prompt by prompt, the prompts with the shortest items first; items with
    the same prompt stay together where they fit.

    Args:
        batch: All items.
        indices: Those to cut (M,).
        sequences: Most items of a micro-batch, at least 1.
        packed: How the items will be laid out.
    """
    if len(indices) == 0:
        return []
    if not packed:
        return list(torch.split(_by_length(batch, indices), sequences))
    parts: list[list[int]] = []
    for unit in _prompt_units(batch, indices):
        if parts and len(parts[-1]) + len(unit.items) <= sequences:
            parts[-1] = [*parts[-1], *unit.items]
        else:  # a prompt whose items do not fit together is cut itself
            parts += (unit.items[at : at + sequences] for at in range(0, len(unit.items), sequences))
    return [torch.tensor(part) for part in parts]


def split_over_ranks(
    batch: RolloutBatch, indices: Int[Tensor, " M"], ranks: int, *, packed: bool = False
) -> list[Int[Tensor, " N"]]:
    """Deal items out to ranks so that each has about as many tokens to compute: the same split on every rank.

    Packed items of one prompt, whose prompt counts once, stay together as far as that leaves no rank with more than its share.

    Args:
        batch: All items.
        indices: Those to deal out (M,).
        ranks: Number of ranks, at least 1; some get no items where there are fewer.
        packed: How the items will be laid out.
    """
    if not packed:
        dealt = balanced(batch.lengths_N[indices].tolist(), ranks)
        return [indices[torch.tensor(places, dtype=torch.long)] for places in dealt]
    units = _prompt_units(batch, indices)
    share = max(1.0, sum(unit.cost for unit in units) / ranks)
    pieces = [piece for unit in units for piece in unit.pieces(math.ceil(unit.cost / share))]
    dealt = balanced([piece.cost for piece in pieces], ranks)
    return [
        torch.tensor(sorted(item for place in places for item in pieces[place].items), dtype=torch.long)
        for places in dealt
    ]


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


@dataclass(frozen=True, slots=True)
class _PromptUnit:
    """Items with the same prompt, shortest first."""

    prompt: int
    """Tokens of the prompt."""
    items: list[int]
    responses: list[int]
    """Tokens of each response."""

    @property
    def cost(self) -> int:
        """Tokens to compute: the prompt once and all responses."""
        return self.prompt + sum(self.responses)

    def pieces(self, count: int) -> list[_PromptUnit]:
        """About equal parts, so many or as many as there are items."""
        dealt = balanced(self.responses, max(1, min(count, len(self.items))))
        return [
            _PromptUnit(self.prompt, [self.items[place] for place in hand], [self.responses[place] for place in hand])
            for hand in dealt
        ]


def _prompt_units(batch: RolloutBatch, indices: Int[Tensor, " M"]) -> list[_PromptUnit]:
    """Items by prompt, those with the shortest longest response first."""
    order = _by_length(batch, indices)
    units: dict[int, _PromptUnit] = {}
    columns = (order, batch.prompt_lengths_N[order], batch.response_lengths_N[order])
    for item, prompt, response in zip(*(column.tolist() for column in columns), strict=True):
        unit = units.setdefault(batch.prompt_keys[item], _PromptUnit(prompt, [], []))
        unit.items.append(item)
        unit.responses.append(response)
    return sorted(units.values(), key=lambda unit: unit.prompt + unit.responses[-1])


def _by_length(batch: RolloutBatch, indices: Int[Tensor, " M"]) -> Int[Tensor, " M"]:
    return indices[torch.argsort(batch.lengths_N[indices], stable=True)]


# Floating-point operations of forward and backward passes, counted from the shapes of a model and of its micro-batches.
#
# As in PaLM (arXiv 2204.02311, appendix B), what gradient checkpointing or the head computes twice counts once. Here tokens count as
# they are computed: what several sequences share once, padding too.


@dataclass(frozen=True, slots=True)
class ModelWork:
    """Operations of a causal language model: two for each multiplication of a weight or an attention score."""

    weights: int
    """Numbers in the decoder's linear layers."""
    learnt: int
    """Of these, numbers that learn."""
    head: int
    """Numbers in the head's matrix."""
    head_learns: bool
    attention: int
    """Width of all query heads together x layers."""
    vocabulary: int

    def forward(self, micro_batch: MicroBatch) -> float:
        """Operations of a forward pass: the decoder's for each token, the head's where a trained token is predicted."""
        scores = 4 * self.attention * micro_batch.attention_pairs  # of a query with a key, and of its share of a value
        return 2.0 * (self.weights * micro_batch.computed_tokens + self.head * self._whole_heads(micro_batch)) + scores

    def update(self, micro_batch: MicroBatch) -> float:
        """Operations of a forward and a backward pass: gradients of all inputs, and of the weights that learn."""
        tokens, positions = micro_batch.computed_tokens, self._whole_heads(micro_batch)
        gradients = 2.0 * (self.learnt * tokens + self.head * positions * self.head_learns)
        return self.forward(micro_batch) * 2 + gradients + 4 * self.attention * micro_batch.attention_pairs

    def _whole_heads(self, micro_batch: MicroBatch) -> float:
        """Positions at which the head is applied; one with fewer of its rows counts as their share."""
        if not micro_batch.allowed:
            return len(micro_batch.positions_Q)
        shares = (1.0 if part.ids_V is None else len(part.ids_V) / self.vocabulary for part in micro_batch.allowed)
        return sum(len(part.queries_Q) * share for part, share in zip(micro_batch.allowed, shares, strict=True))

    @classmethod
    def of(cls, model: Any) -> ModelWork:
        """Count a transformers model, with the adapters that sit in it; weights may be sharded."""
        config = model.config.get_text_config()
        linear = [module for module in model.get_decoder().modules() if isinstance(module, nn.Linear)]
        head = model.get_output_embeddings()
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return cls(
            weights=sum(module.weight.numel() for module in linear),
            learnt=sum(module.weight.numel() for module in linear if module.weight.requires_grad),
            head=config.vocab_size * config.hidden_size,
            head_learns=any(parameter.requires_grad for parameter in head.parameters()),
            attention=width * config.num_attention_heads * config.num_hidden_layers,
            vocabulary=config.vocab_size,
        )


# Trained tokens that were drawn from a part of the vocabulary (`Completion.allowed`): which parts, and how they are computed together.
#
# Tokens of small sets are scored against the rows of the head that their sets name, gathered once for a micro-batch: a handful of the
# 151k rows of a large vocabulary. Tokens of large sets, and those of the whole vocabulary, are scored against all rows. In both cases
# what a set leaves out is masked block by block.
#
# Suffixes: _K trained tokens, _Q pairs of a position and a set, _U sets, _P tokens in all of these, _V gathered rows, _B a block of rows.


GATHERED_SET = 1024
"""Largest set whose rows are gathered."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Rows of a head that are left at each of Q positions."""

    sets_Q: Int[Tensor, " Q"]
    """Set of each position."""
    set_P: Int[Tensor, " P"]
    row_P: Int[Tensor, " P"]
    """The rows of each set, as pairs."""
    count: int
    """Number of sets (U)."""
    first_is_free: bool
    """Set 0 has all rows."""

    def mask(self, start: int, end: int, positions: Int[Tensor, " M"] | None = None) -> Bool[Tensor, "Q B"]:
        """True at the rows from `start` to `end` that a position may give: of these positions, or of all."""
        mask_U_B = torch.zeros(self.count, end - start, dtype=torch.bool, device=self.sets_Q.device)
        inside = ((self.row_P >= start) & (self.row_P < end)).nonzero().squeeze(1)
        mask_U_B[self.set_P[inside], self.row_P[inside] - start] = True
        if self.first_is_free:
            mask_U_B[0] = True
        return mask_U_B[self.sets_Q if positions is None else self.sets_Q[positions]]


@dataclass(frozen=True, slots=True)
class LimitedTokens:
    """Trained tokens of a micro-batch that are scored against the same rows of the head."""

    places_K: Int[Tensor, " K"]
    """Which of the micro-batch's trained tokens they are."""
    targets_K: Int[Tensor, " K"]
    """Row of each."""
    rows_K: Int[Tensor, " K"]
    """Which of the Q predicts each."""
    queries_Q: Int[Tensor, " Q"]
    """Position of each, an index of `MicroBatch.positions_Q`."""
    ids_V: Int[Tensor, " V"] | None
    """Token of each row that is gathered; None: all rows of the head, in their order."""
    limits: Limits | None
    """None: all of these rows count everywhere."""


def limited_tokens(
    batch: RolloutBatch, places_K: Int[Tensor, " K"], rows_K: Int[Tensor, " K"], targets_K: Int[Tensor, " K"]
) -> tuple[LimitedTokens, ...]:
    """Sort the trained tokens of a micro-batch by the rows that they are scored against.

    Args:
        batch: Items with `allowed_F`, on the CPU.
        places_K: Where the trained tokens stand in it.
        rows_K: Which position of the micro-batch predicts each.
        targets_K: What is scored.

    Returns:
        One or two parts with all K tokens; empty where none is limited.
    """
    if batch.allowed_F is None or batch.allowed_sizes_U is None:
        return ()
    set_K = batch.allowed_F[places_K]
    gathers_K = (set_K >= 0) & (batch.allowed_sizes_U[set_K.clamp(min=0)] <= GATHERED_SET)
    if not bool((set_K >= 0).any()):
        return ()
    chosen = ((part_K.nonzero().squeeze(1), gathers) for part_K, gathers in ((gathers_K, True), (~gathers_K, False)))
    return tuple(
        _part(batch, part, set_K[part], rows_K[part], targets_K[part], gathers) for part, gathers in chosen if len(part)
    )


def _part(
    batch: RolloutBatch, places_K: Tensor, set_K: Tensor, rows_K: Tensor, targets_K: Tensor, gathers: bool
) -> LimitedTokens:
    assert batch.allowed_ids_P is not None
    assert batch.allowed_sizes_U is not None
    names_U, local_K = torch.unique(set_K, return_inverse=True)  # -1, any token, comes first
    pairs_Q, inverse_K = torch.unique(rows_K * len(names_U) + local_K, return_inverse=True)
    known_U = names_U.clamp(min=0)
    sizes_U = batch.allowed_sizes_U[known_U].masked_fill(names_U < 0, 0)
    starts_U = (batch.allowed_sizes_U.cumsum(0) - batch.allowed_sizes_U)[known_U]
    set_P = torch.arange(len(names_U)).repeat_interleave(sizes_U)
    ids_P = batch.allowed_ids_P[torch.arange(len(set_P)) + (starts_U - sizes_U.cumsum(0) + sizes_U)[set_P]]
    ids_V, row_P = torch.unique(ids_P, return_inverse=True) if gathers else (None, ids_P)
    limits = Limits(pairs_Q % len(names_U), set_P, row_P, len(names_U), bool(names_U[0] < 0))
    return LimitedTokens(
        places_K,
        targets_K if ids_V is None else torch.searchsorted(ids_V, targets_K),
        inverse_K,
        pairs_Q // len(names_U),
        ids_V,
        limits if len(set_P) else None,
    )
