"""Texts at which a completion ends."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor


class StopTexts:
    """Looks whether rows have reached one of some texts, decoding as little as it can.

    Only a token that holds a text's last character can complete it, and what it completes lies in the last few tokens.
    """

    def __init__(self, texts: tuple[str, ...], tokenizer: Any) -> None:
        self._texts = texts
        self._tokenizer = tokenizer
        self._window = max(len(text.encode()) for text in texts)  # a token is a byte at least
        self._closing: torch.Tensor | None = None
        # The bytes of another character may lie in several tokens: then all rows are read.
        if all(text[-1].isascii() for text in texts):
            last = {text[-1] for text in texts}
            pieces = tokenizer.batch_decode([[token] for token in range(len(tokenizer))])
            self._closing = torch.tensor([token for token, piece in enumerate(pieces) if last & set(piece)])

    def reached(self, tokens_N_T: Int[Tensor, "N T"], rows_M: Int[Tensor, " M"], step: int) -> Bool[Tensor, " M"]:
        """For each of these rows whether its token at `step` has just completed one of the texts."""
        found_M = torch.zeros(len(rows_M), dtype=torch.bool, device=rows_M.device)
        places = torch.arange(len(rows_M), device=rows_M.device)
        if self._closing is not None:
            places = torch.isin(tokens_N_T[rows_M, step], self._closing.to(rows_M.device)).nonzero().squeeze(1)
        if len(places):
            tail = tokens_N_T[rows_M[places], max(0, step + 1 - self._window) : step + 1]
            texts = self._tokenizer.batch_decode(tail, skip_special_tokens=True)
            hits = [any(mark in text for mark in self._texts) for text in texts]
            found_M[places] = torch.tensor(hits, device=rows_M.device)
        return found_M
