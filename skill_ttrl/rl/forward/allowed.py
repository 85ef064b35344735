"""Trained tokens that were drawn from a part of the vocabulary (`Completion.allowed`): which parts, and how they are computed together.

Tokens of small sets are scored against the rows of the head that their sets name, gathered once for a micro-batch: a handful of the
151k rows of a large vocabulary. Tokens of large sets, and those of the whole vocabulary, are scored against all rows. In both cases
what a set leaves out is masked block by block.

Suffixes: _K trained tokens, _Q pairs of a position and a set, _U sets, _P tokens in all of these, _V gathered rows, _B a block of rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Int
from torch import Tensor

if TYPE_CHECKING:
    from skill_ttrl.rl.batch import RolloutBatch


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
