"""Embeddings that are sums of shared rows: "cabinet 27" has the row of its kind plus the row of its number.

A model whose config.json says `shared_embeddings: true` has such a matrix. It is a plain one to whoever loads it; only the optimizer
knows the rows (`rl/shared_rows.py`).
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MARK = "shared_embeddings"
"""Of a model's config."""
_NUMBERED = re.compile(r"(.+) (\d+)")


class _Rows(NamedTuple):
    """Rows that tokens share."""

    membership: Float[Tensor, "V K"]
    parts: list[str]
    """The part that each row stands for: a `special` token, a `kind`, or a `number` (one of them for no number)."""


def row_membership(tokenizer: PreTrainedTokenizerBase) -> Float[Tensor, "V K"]:
    """A, with embeddings = A @ rows: 1 where a row of `K` is part of a token's embedding.

    A token "KIND NUMBER" is the row of its kind plus the row of its number, any other the row of its kind plus one for "no number", so that
    "mug" and "mug 2" share a row. Special and added tokens have a row of their own.
    """
    return _rows(tokenizer).membership


def _rows(tokenizer: PreTrainedTokenizerBase) -> _Rows:
    alone = {*tokenizer.all_special_ids, *tokenizer.get_added_vocab().values()}
    numbers: dict[tuple[str, str], int] = {}
    places: list[tuple[int, int]] = []
    for token, text in enumerate(tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))):
        found = _NUMBERED.fullmatch(text)
        names = [("special", text)]
        if token not in alone:
            names = [("kind", found[1] if found else text), ("number", found[2] if found else "")]
        places += [(token, numbers.setdefault(name, len(numbers))) for name in names]
    membership = torch.zeros(len(tokenizer), len(numbers))
    membership[tuple(torch.tensor(places).T)] = 1.0
    return _Rows(membership, [what for what, _ in numbers])


@torch.no_grad()
def draw_shared_embeddings(model: Any, tokenizer: PreTrainedTokenizerBase, number_scale: float = 1.0) -> None:
    """Draw a new model's embeddings as sums of rows, each value with the standard deviation of the config, and mark the model.

    `number_scale` is the deviation of the rows of numbers as a share of that of the others: below 1, "mug 1" is more like "mug 2" than like
    "plate 1".
    """
    rows = _rows(tokenizer)
    embeddings = model.get_input_embeddings().weight
    wider = math.hypot(1.0, number_scale)  # a sum of two rows would be wider than one
    share = {"special": 1.0, "kind": 1.0 / wider, "number": number_scale / wider}
    deviations = torch.tensor([share[part] * model.config.initializer_range for part in rows.parts])
    drawn = torch.randn(len(deviations), embeddings.shape[1]) * deviations[:, None]
    embeddings.copy_(rows.membership @ drawn)
    setattr(model.config, MARK, True)


@torch.no_grad()
def attend_to_alike(model: Any, scale: float) -> None:
    """Let the first layer of a new model attend to tokens like each one: its keys are its queries, both `scale` times as large as drawn.

    A model that has read nothing must find out that "mug" in the task and "mug 2" in an observation are to be compared. That comes late
    and suddenly in training (as induction heads do, arXiv 2209.11895); here it is there from the start, and is learnt from as all else.
    """
    attention = model.get_decoder().layers[0].self_attn
    for query, key in (
        (attention.q_proj.weight, attention.k_proj.weight),
        (attention.q_proj.bias, attention.k_proj.bias),
    ):
        query.mul_(scale)
        key.copy_(query)
