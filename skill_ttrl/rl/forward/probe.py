"""Check on a few tokens that a model computes prefix trees as it computes the sequences one by one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from skill_ttrl.rl.forward.attention import NAME, install
from skill_ttrl.rl.forward.tree import PrefixTree, build_tree

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
