"""Embeddings that are sums of shared rows: "cabinet 27" has the row of its kind plus the row of its number.

A model whose config.json says `shared_embeddings: true` has such a matrix. It is a plain one to whoever loads it; only the optimiser
knows the rows (`rl/shared_rows.py`).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MARK = "shared_embeddings"
"""Of a model's config."""
_NUMBERED = re.compile(r"(.+) (\d+)")


def row_membership(tokenizer: PreTrainedTokenizerBase) -> Float[Tensor, "V K"]:
    """A, with embeddings = A @ rows: 1 where a row of `K` is part of a token's embedding.

    A token "KIND NUMBER" is the row of its kind plus the row of its number, any other the row of its kind plus one for "no number", so that
    "mug" and "mug 2" share a row. Special and added tokens have a row of their own.
    """
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
    return membership


@torch.no_grad()
def draw_shared_embeddings(model: Any, tokenizer: PreTrainedTokenizerBase) -> None:
    """Draw a new model's embeddings as sums of rows, each value with the standard deviation of the config, and mark the model."""
    membership = row_membership(tokenizer)
    embeddings = model.get_input_embeddings().weight
    share = membership / membership.sum(dim=1, keepdim=True).sqrt()  # a sum of two rows would be wider than one
    deviations = share.amax(dim=0) * model.config.initializer_range
    embeddings.copy_(membership @ (torch.randn(membership.shape[1], embeddings.shape[1]) * deviations[:, None]))
    setattr(model.config, MARK, True)
