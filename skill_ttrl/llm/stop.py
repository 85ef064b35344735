"""Where a completion is to end: at one of some texts, whatever tokens they are made of."""

from __future__ import annotations

from typing import Any

import torch


class StopTexts:
    """Looks whether rows have reached one of some texts, decoding as little as it can.

    Only a token that holds a text's last character can complete it, and what it completes lies in the last few tokens.
    """

    def __init__(self, texts: tuple[str, ...], tokenizer: Any) -> None:
        self._texts = texts
        self._tokenizer = tokenizer
        self._window = max(len(text.encode()) for text in texts)  # a token is a byte at least
        self._closing: torch.Tensor | None = None
        if all(
            text[-1].isascii() for text in texts
        ):  # another's bytes may lie in several tokens: then all rows are read
            last = {text[-1] for text in texts}
            pieces = tokenizer.batch_decode([[token] for token in range(len(tokenizer))])
            self._closing = torch.tensor([token for token, piece in enumerate(pieces) if last & set(piece)])

    def reached(self, tokens_N_T: torch.Tensor, alive: torch.Tensor, step: int, running: torch.Tensor) -> torch.Tensor:
        """For each living row whether it is running and has just completed one of the texts."""
        candidates = running
        if self._closing is not None:
            candidates = running & torch.isin(tokens_N_T[alive, step], self._closing.to(alive.device))
        places = candidates.nonzero().squeeze(1)
        found = torch.zeros_like(running)
        if len(places):
            tail = tokens_N_T[alive[places], max(0, step + 1 - self._window) : step + 1]
            texts = self._tokenizer.batch_decode(tail, skip_special_tokens=True)
            hits = [any(mark in text for mark in self._texts) for text in texts]
            found[places] = torch.tensor(hits, device=running.device)
        return found
