"""Rollouts as tensors: the only place where they are defined.

A training item is one prompt and the completion sampled from it, so a trajectory of several turns gives several items.
`RolloutBatch` holds all items flat, without padding; `micro_batches` cuts it into padded `MicroBatch`es of similar lengths,
which is where nearly all of the gain of packing lies on a CPU.

Suffixes name the dimensions: _N items, _T positions of prompt and response, _R positions of the response alone,
_F flat over all tokens of all items, _K trained tokens of a micro-batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from skill_ttrl.types import Group, Trajectory

Advantages = Sequence[float | Sequence[float | Sequence[float]]]
"""An entry for each trajectory: one number for all of its steps, or a row with an entry for each step. That is one number for
all of the step's tokens, or a row with one for each token of its completion (none where it has no completion)."""


class EncodedDemonstration(NamedTuple):
    """One example to imitate, as tokens."""

    prompt_ids: Sequence[int]
    response_ids: Sequence[int]
    mask: Sequence[bool] | None = None
    """For each response token whether it is learnt; None: all are."""


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
    old_log_probs_N_R: Float[Tensor, "N R"]
    advantages_N_R: Float[Tensor, "N R"]
    """0 beyond the response."""
    weights_N_R: Float[Tensor, "N R"]
    """Factor of each token's advantage (see `rl.correction`); 1 where nothing is corrected."""

    @property
    def trained_tokens(self) -> int:
        """Number of trained tokens (K)."""
        return len(self.targets_K)

    def to(self, device: torch.device) -> MicroBatch:
        """Move to another device."""
        if self.tokens_N_T.device == device:
            return self
        return MicroBatch(*(getattr(self, field.name).to(device) for field in fields(self)))


@dataclass(frozen=True)
class RolloutBatch:
    """Items of one update, flat and on the CPU."""

    tokens_F: Int[Tensor, " F"]
    """Prompt and response of the first item, then of the second, and so on."""
    prompt_lengths_N: Int[Tensor, " N"]
    """Tokens in each prompt, at least 1."""
    response_lengths_N: Int[Tensor, " N"]
    """Tokens in each response, at least 1."""
    old_log_probs_F: Float[Tensor, " F"]
    """Log-prob (nats) each response token was sampled with; 0 at prompt tokens."""
    trained_F: Bool[Tensor, " F"]
    """Which tokens are learnt from; never a prompt token."""
    advantages_F: Float[Tensor, " F"]
    """Of each response token; 0 at prompt tokens."""
    prompt_index_N: Int[Tensor, " N"]
    """Which group (prompt) an item belongs to."""
    weights_F: Float[Tensor, " F"] | None = None
    """Factor of each token's advantage (see `rl.correction`); None: 1 everywhere."""

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

    def _count(self, marked_F: Bool[Tensor, " F"]) -> Int[Tensor, " N"]:
        """Marked tokens of each item."""
        counts_F = torch.cat([torch.zeros(1, dtype=torch.long), marked_F.cumsum(0)])
        return counts_F[self.starts_N + self.lengths_N] - counts_F[self.starts_N]

    def micro_batches(self, indices: Int[Tensor, " M"], size: int, pad_id: int) -> Iterator[MicroBatch]:
        """The items at `indices` (M,), shortest first, at most `size` (at least 1) at a time; `pad_id` fills up the rows."""
        by_length = indices[torch.argsort(self.lengths_N[indices], stable=True)]
        for rows in torch.split(by_length, size):
            yield self._pad(rows, pad_id)

    def _pad(self, rows: Int[Tensor, " N"], pad_id: int) -> MicroBatch:
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
        return MicroBatch(
            tokens_N_T=tokens_N_T,
            positions_K=(offsets_N + prompts + columns_R - 1)[mask_N_R],
            targets_K=self.tokens_F[sources_N_R[mask_N_R]],
            slots_K=mask_N_R.flatten().nonzero().squeeze(1),
            response_mask_N_R=mask_N_R.float(),
            old_log_probs_N_R=self.old_log_probs_F[sources_N_R].masked_fill(~mask_N_R, 0.0),
            advantages_N_R=self.advantages_F[sources_N_R].masked_fill(columns_R >= responses, 0.0),
            weights_N_R=mask_N_R.float() if self.weights_F is None else self.weights_F[sources_N_R] * mask_N_R,
        )


class _Item(NamedTuple):
    prompt_ids: Sequence[int]
    token_ids: Sequence[int]
    logprobs: Sequence[float]
    mask: Sequence[bool]
    advantages: Sequence[float]
    """One for each response token, as all of the above but the prompt."""
    prompt_index: int


def pack(groups: Sequence[Group], advantages: Advantages) -> RolloutBatch:
    """Pack sampled groups into a batch: one item for each step that holds a completion with tokens.

    A group's position is its items' prompt index. There is one entry of `advantages` for each trajectory, group after group.

    Raises:
        ValueError: not one advantage a trajectory, a step or a token, a completion without log-probs, or one without a prompt.
    """
    trajectories = [(index, trajectory) for index, group in enumerate(groups) for trajectory in group.trajectories]
    if len(advantages) != len(trajectories):
        raise ValueError(
            f"Expected one advantage for each of {len(trajectories)} trajectories, found {len(advantages)}."
        )
    items: list[_Item] = []
    for (index, trajectory), given in zip(trajectories, advantages, strict=True):
        rows = given if isinstance(given, Sequence) else [given] * len(trajectory.steps)
        _check_count(trajectory, "steps", len(trajectory.steps), len(rows))
        for step, row in zip(trajectory.steps, rows, strict=True):
            if step.completion is None or not step.completion.token_ids:
                continue
            count = len(step.completion.token_ids)
            if len(step.completion.logprobs) != count:
                raise ValueError(
                    f"Task {trajectory.task.id!r}: a completion of {count} tokens has {len(step.completion.logprobs)} "
                    "log-probs. The learner needs the log-prob each was sampled with."
                )
            values = row if isinstance(row, Sequence) else [row] * count
            _check_count(trajectory, "tokens of a step", count, len(values))
            mask = step.completion.mask or (True,) * count
            items.append(
                _Item(step.prompt_ids, step.completion.token_ids, step.completion.logprobs, mask, values, index)
            )
    return _flatten(items)


def _check_count(trajectory: Trajectory, what: str, expected: int, found: int) -> None:
    if found != expected:
        raise ValueError(
            f"Task {trajectory.task.id!r}: expected one advantage for each of {expected} {what}, found {found}."
        )


def pack_demonstrations(demonstrations: Sequence[EncodedDemonstration]) -> RolloutBatch:
    """Pack examples to imitate: the response tokens that the mask does not leave out; each is a prompt of its own.

    Raises:
        ValueError: an example has no prompt tokens or no response tokens.
    """
    if any(len(example.response_ids) == 0 for example in demonstrations):
        raise ValueError("A demonstration has an empty response: there is nothing to learn from it.")
    items = []
    for index, (prompt, response, mask) in enumerate(demonstrations):
        count = len(response)
        items.append(_Item(prompt, response, [0.0] * count, mask or [True] * count, [1.0] * count, index))
    return _flatten(items)


def _flatten(items: Sequence[_Item]) -> RolloutBatch:
    if any(len(item.prompt_ids) == 0 for item in items):
        raise ValueError("An item has no prompt tokens: the first response token would have nothing to follow.")
    prompt_lengths = torch.tensor([len(item.prompt_ids) for item in items], dtype=torch.long)
    response_lengths = torch.tensor([len(item.token_ids) for item in items], dtype=torch.long)
    parts = torch.stack([prompt_lengths, response_lengths], dim=1).flatten()
    response_F = torch.tensor([False, True]).repeat(len(items)).repeat_interleave(parts)

    def spread(rows: Iterable[Sequence[Any]], dtype: torch.dtype) -> Tensor:
        """Values of the response tokens, with zeros at the prompts."""
        flat = torch.zeros(len(response_F), dtype=dtype)
        flat[response_F] = torch.tensor(list(chain.from_iterable(rows)), dtype=dtype)
        return flat

    tokens = chain.from_iterable((*item.prompt_ids, *item.token_ids) for item in items)
    return RolloutBatch(
        tokens_F=torch.tensor(list(tokens), dtype=torch.long),
        prompt_lengths_N=prompt_lengths,
        response_lengths_N=response_lengths,
        old_log_probs_F=spread((item.logprobs for item in items), torch.float32),
        trained_F=spread((item.mask for item in items), torch.bool),
        advantages_F=spread((item.advantages for item in items), torch.float32),
        prompt_index_N=torch.tensor([item.prompt_index for item in items], dtype=torch.long),
    )
