"""Sums, means and maxima over the tokens of each sequence, given back at each token: of flat tokens, and of padded rows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor


class Sequences(Protocol):
    """Which tokens belong to one sequence. All functions map values at the tokens onto values of the same shape."""

    def sum(self, values: Tensor) -> Tensor:
        """Sum over each token's sequence."""

    def mean(self, values: Tensor) -> Tensor:
        """Mean over each token's sequence."""

    def max(self, values: Tensor) -> Tensor:
        """Maximum over each token's sequence."""


@dataclass(frozen=True)
class FlatSequences:
    """K tokens of N sequences, in any order."""

    sequence_K: Int[Tensor, " K"]
    """Sequence of each token, from 0."""

    @cached_property
    def counts_N(self) -> Int[Tensor, " N"]:
        """Tokens of each sequence."""
        return torch.bincount(self.sequence_K)

    def sums_N(self, values_K: Float[Tensor, " K"]) -> Float[Tensor, " N"]:
        """Sum of each sequence."""
        return values_K.new_zeros(len(self.counts_N)).index_add(0, self.sequence_K, values_K)

    def sum(self, values: Float[Tensor, " K"]) -> Float[Tensor, " K"]:
        """See `Sequences`."""
        return self.sums_N(values)[self.sequence_K]

    def mean(self, values: Float[Tensor, " K"]) -> Float[Tensor, " K"]:
        """See `Sequences`."""
        return self.sum(values) / self.counts_N[self.sequence_K]

    def max(self, values: Float[Tensor, " K"]) -> Float[Tensor, " K"]:
        """See `Sequences`."""
        found_N = values.new_full((len(self.counts_N),), -torch.inf)
        return found_N.scatter_reduce(0, self.sequence_K, values, "amax")[self.sequence_K]


@dataclass(frozen=True)
class PaddedSequences:
    """Rows of N sequences, padded to R tokens."""

    mask_N_R: Float[Tensor, "N R"]
    """1 at tokens that count."""

    def sum(self, values: Float[Tensor, "N R"]) -> Float[Tensor, "N R"]:
        """See `Sequences`."""
        return (values * self.mask_N_R).sum(dim=1, keepdim=True).expand_as(values)

    def mean(self, values: Float[Tensor, "N R"]) -> Float[Tensor, "N R"]:
        """See `Sequences`."""
        return self.sum(values) / self.mask_N_R.sum(dim=1, keepdim=True).clamp(min=1)

    def max(self, values: Float[Tensor, "N R"]) -> Float[Tensor, "N R"]:
        """See `Sequences`."""
        inside = values.masked_fill(self.mask_N_R == 0, -torch.inf)
        return inside.amax(dim=1, keepdim=True).expand_as(values)
