"""Rollouts as tensors: the only place where they are defined. `pack` makes them.

A training item is one prompt and the completion sampled from it, so a trajectory of several turns gives several items.
`RolloutBatch` holds all items flat, without padding; `micro_batches` cuts it into padded `MicroBatch`es of similar lengths,
which is where nearly all of the gain of packing lies on a CPU.

Suffixes name the dimensions: _N items, _T positions of prompt and response, _R positions of the response alone,
_F flat over all tokens of all items, _K trained tokens of a micro-batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """N items padded on the right: prompt, response, padding. Attention is causal, so no real token sees padding."""

    tokens_N_T: Int[Tensor, "N T"]
    positions_K: Int[Tensor, " K"]
    """Where in the flattened (N, T) the trained tokens are predicted: one position before each."""
    targets_K: Int[Tensor, " K"]
    """The trained tokens."""
    slots_K: Int[Tensor, " K"]
    """Where each belongs in the flattened (N, R)."""
    response_mask_N_R: Float[Tensor, "N R"]
    """1 at trained tokens, 0 elsewhere."""
    sampler_log_probs_N_R: Float[Tensor, "N R"]
    old_log_probs_N_R: Float[Tensor, "N R"]
    advantages_N_R: Float[Tensor, "N R"]
    """0 where nothing is trained, as all matrices here."""
    ref_log_probs_N_R: Float[Tensor, "N R"] | None = None
    values_N_R: Float[Tensor, "N R"] | None = None
    returns_N_R: Float[Tensor, "N R"] | None = None
    weights_N_R: Float[Tensor, "N R"] | None = None

    @property
    def trained_tokens(self) -> int:
        """Number of trained tokens (K)."""
        return len(self.targets_K)

    def to(self, device: torch.device) -> MicroBatch:
        """Move to another device."""
        if self.tokens_N_T.device == device:
            return self
        parts: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        moved: dict[str, Any] = {name: None if part is None else part.to(device) for name, part in parts.items()}
        return MicroBatch(**moved)


MATRICES = tuple(
    field.name for field in fields(MicroBatch) if field.name.endswith("_N_R") and field.name != "response_mask_N_R"
)
"""Fields of a `MicroBatch` that hold the values of a batch's field of the same name, with _F."""


@dataclass(frozen=True)
class RolloutBatch:
    """Items of one update, flat and on the CPU."""

    tokens_F: Int[Tensor, " F"]
    """Prompt and response of the first item, then of the second, and so on."""
    prompt_lengths_N: Int[Tensor, " N"]
    """Tokens in each prompt, at least 1."""
    response_lengths_N: Int[Tensor, " N"]
    """Tokens in each response, at least 1."""
    sampler_log_probs_F: Float[Tensor, " F"]
    """Log-prob (nats) each response token was sampled with; 0 at prompt tokens."""
    old_log_probs_F: Float[Tensor, " F"]
    """Denominators of the policy ratio: `sampler_log_probs_F`, or the learner's own where those are corrected."""
    trained_F: Bool[Tensor, " F"]
    """Which tokens are learnt from; never a prompt token."""
    scores_F: Float[Tensor, " F"]
    """`token_level_scores`: what the item earned, at its last trained token; 0 elsewhere."""
    rewards_F: Float[Tensor, " F"]
    """`token_level_rewards`: scores less the KL penalty, where there is one (`rl.kl.apply_kl_penalty`)."""
    advantages_F: Float[Tensor, " F"]
    """Of each response token; 0 at prompt tokens."""
    prompt_index_N: Int[Tensor, " N"]
    """Which group (prompt) an item belongs to."""
    trajectory_index_N: Int[Tensor, " N"]
    """Which trajectory, counted over all groups."""
    step_index_N: Int[Tensor, " N"]
    """Which step of its trajectory."""
    ref_log_probs_F: Float[Tensor, " F"] | None = None
    """Log-probs of the reference model; None where nothing needs them."""
    values_F: Float[Tensor, " F"] | None = None
    """Critic's values, before each token is sampled; None without a critic."""
    returns_F: Float[Tensor, " F"] | None = None
    """What the critic learns to predict; None without a critic."""
    weights_F: Float[Tensor, " F"] | None = None
    """Importance weight of each token's loss (see `rl.correction`); None: 1 everywhere."""

    def __len__(self) -> int:
        return len(self.prompt_lengths_N)

    @cached_property
    def lengths_N(self) -> Int[Tensor, " N"]:
        """Tokens in each item, prompt and response."""
        return self.prompt_lengths_N + self.response_lengths_N

    @cached_property
    def starts_N(self) -> Int[Tensor, " N"]:
        """Where each item starts in the flat tensors."""
        return self.lengths_N.cumsum(0) - self.lengths_N

    @cached_property
    def trained_tokens_N(self) -> Int[Tensor, " N"]:
        """Trained tokens of each item."""
        return self._count(self.trained_F)

    @cached_property
    def has_advantage_N(self) -> Bool[Tensor, " N"]:
        """Items with a token whose advantage is not 0."""
        return self._count(self.advantages_F != 0) > 0

    def at_last_token(self, values_N: Float[Tensor, " N"]) -> Float[Tensor, " F"]:
        """Each item's value at its last trained token, 0 elsewhere. An item without trained tokens loses its value."""
        trained = self.trained_F.nonzero().squeeze(1)
        last_N = torch.full((len(self),), -1).scatter_reduce(0, self.item_F[trained], trained, "amax")
        has_any = last_N >= 0
        flat = torch.zeros(len(self.tokens_F))
        flat[last_N[has_any]] = values_N[has_any].float()
        return flat

    def sum_by_item(self, values_F: Float[Tensor, " F"]) -> Float[Tensor, " N"]:
        """Sum of each item's values."""
        return torch.zeros(len(self), dtype=values_F.dtype).index_add(0, self.item_F, values_F)

    @cached_property
    def item_F(self) -> Int[Tensor, " F"]:
        """Item of each token."""
        return torch.arange(len(self)).repeat_interleave(self.lengths_N)

    def _count(self, marked_F: Bool[Tensor, " F"]) -> Int[Tensor, " N"]:
        """Marked tokens of each item."""
        counts_F = torch.cat([torch.zeros(1, dtype=torch.long), marked_F.cumsum(0)])
        return counts_F[self.starts_N + self.lengths_N] - counts_F[self.starts_N]

    def micro_batches(self, indices: Int[Tensor, " M"], size: int, pad_id: int) -> Iterator[MicroBatch]:
        """The items at `indices` (M,), shortest first, at most `size` (at least 1) at a time; `pad_id` fills up the rows."""
        for rows in self.micro_batch_rows(indices, size):
            yield self.micro_batch(rows, pad_id)

    def micro_batch_rows(self, indices: Int[Tensor, " M"], size: int) -> tuple[Int[Tensor, " N"], ...]:
        """Cut items into micro-batches: shortest first, at most `size` (at least 1) at a time."""
        if len(indices) == 0:
            return ()
        return torch.split(indices[torch.argsort(self.lengths_N[indices], stable=True)], size)

    def trained_places(self, rows: Int[Tensor, " N"]) -> Int[Tensor, " K"]:
        """Where the trained tokens of these items are in the flat tensors, item after item."""
        starts, lengths = self.starts_N[rows, None], self.lengths_N[rows, None]
        columns = torch.arange(int(lengths.max()))
        flat = (starts + columns).clamp(max=len(self.trained_F) - 1)
        return flat[(columns < lengths) & self.trained_F[flat]]

    def micro_batch(self, rows: Int[Tensor, " N"], pad_id: int) -> MicroBatch:
        """Pad these items; `pad_id` fills up the rows."""
        starts, prompts = self.starts_N[rows, None], self.prompt_lengths_N[rows, None]
        lengths, responses = self.lengths_N[rows, None], self.response_lengths_N[rows, None]
        last = len(self.tokens_F) - 1

        columns_T = torch.arange(int(lengths.max()))
        tokens_N_T = self.tokens_F[(starts + columns_T).clamp(max=last)]
        tokens_N_T = tokens_N_T.masked_fill(columns_T >= lengths, pad_id)

        columns_R = torch.arange(int(responses.max()))
        sources_N_R = (starts + prompts + columns_R).clamp(max=last)
        mask_N_R = self.trained_F[sources_N_R] & (columns_R < responses)
        offsets_N = torch.arange(len(rows))[:, None] * len(columns_T)
        matrices: dict[str, Any] = {}
        for name in MATRICES:
            values_F = getattr(self, f"{name.removesuffix('_N_R')}_F")
            matrices[name] = None if values_F is None else values_F[sources_N_R].masked_fill(~mask_N_R, 0.0)
        return MicroBatch(
            tokens_N_T=tokens_N_T,
            positions_K=(offsets_N + prompts + columns_R - 1)[mask_N_R],
            targets_K=self.tokens_F[sources_N_R[mask_N_R]],
            slots_K=mask_N_R.flatten().nonzero().squeeze(1),
            response_mask_N_R=mask_N_R.float(),
            **matrices,
        )
