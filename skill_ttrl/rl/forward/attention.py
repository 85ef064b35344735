"""Attention over a prefix tree, as an attention implementation of transformers.

`install` gives a model the implementation `NAME`. Where a forward pass is given `prefix_tree`, its single row of packed nodes
is gathered into rows of queries and keys, torch's scaled dot-product attention runs on these, and the results go back to the
nodes. Every other forward pass is that of `sdpa`.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from skill_ttrl.rl.forward.tree import AttentionBlock, PrefixTree

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
