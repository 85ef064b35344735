"""Gradients of embedding and head that go straight to `.grad`.

With a large vocabulary these two are most of the weights, or the same weights. Autograd would make a gradient of the whole matrix
for each of them and micro-batch, only to add it to the one that has gathered.
"""

from __future__ import annotations

from typing import Any, TypeGuard

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn


def may_gather(weight: Tensor) -> bool:
    """True if nothing else has to see this weight's gradient on its way: a plain leaf without hooks."""
    hooks = weight._backward_hooks or getattr(weight, "_post_accumulate_grad_hooks", None)
    return weight.requires_grad and weight.is_leaf and type(weight) is nn.Parameter and not hooks


def gathered(weight: Tensor) -> Tensor:
    """The gradient that has gathered; zeros where there was none."""
    if weight.grad is None:
        weight.grad = torch.zeros_like(weight)
    return weight.grad


def embed(embedding: nn.Embedding, tokens_N_T: Int[Tensor, "N T"]) -> Float[Tensor, "N T D"]:
    """`embedding(tokens)`, whose gradient goes straight to `embedding.weight.grad`."""
    hidden: Tensor = _Embed.apply(embedding.weight, tokens_N_T, embedding.padding_idx)  # type: ignore[no-untyped-call]
    return hidden


def gather_rows(weight_V_D: Tensor, ids: Int[Tensor, " R"], *, straight: bool) -> Float[Tensor, "R D"]:
    """Rows of a matrix; with `straight` their gradient goes to its `.grad` and no matrix of its size is made."""
    rows: Tensor = _Rows.apply(weight_V_D, ids) if straight else weight_V_D.index_select(0, ids)  # type: ignore[no-untyped-call]
    return rows


def is_plain_embedding(module: nn.Module) -> TypeGuard[nn.Embedding]:
    """True if a module is a table of rows that learns, and nothing else."""
    if type(module) is not nn.Embedding or module._forward_hooks or module._forward_pre_hooks:
        return False
    return may_gather(module.weight) and module.max_norm is None and not (module.scale_grad_by_freq or module.sparse)


class _Embed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, tokens_N_T: Tensor, padding_idx: int | None) -> Tensor:
        ctx.weight, ctx.padding_idx = weight, padding_idx
        ctx.save_for_backward(tokens_N_T)
        return weight[tokens_N_T]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, None, None]:
        (tokens_N_T,) = ctx.saved_tensors
        tokens, rows = tokens_N_T.flatten(), gradients[0].flatten(0, -2).to(ctx.weight.dtype)
        if ctx.padding_idx is not None:  # as in torch, its row does not learn
            rows = rows.masked_fill((tokens == ctx.padding_idx)[:, None], 0.0)
        gathered(ctx.weight).index_add_(0, tokens, rows)
        return None, None, None


class _Rows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, ids: Tensor) -> Tensor:
        ctx.weight = weight
        ctx.save_for_backward(ids)
        return weight.index_select(0, ids)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, None]:
        gathered(ctx.weight).index_add_(0, ctx.saved_tensors[0], gradients[0].to(ctx.weight.dtype))
        return None, None
