"""Rollouts as tensors: the only place where they are defined.

A training item is one prompt and the completion sampled from it, so a trajectory of several turns gives several items,
each with the trajectory's advantage or one of its own. `RolloutBatch` keeps all items flat, without padding; `micro_batches` cuts it into
padded `MicroBatch`es of similar lengths, which is where nearly all of the gain of packing lies on a CPU.

Suffixes name the dimensions: _N items, _T positions of prompt and response, _R positions of the response alone,
_F flat over all tokens of all items, _K trained tokens of a micro-batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import chain
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from skill_ttrl.types import Group

Advantages = Sequence[float | Sequence[float]]
"""An entry for each trajectory: one number, which all of its steps carry, or a row with one for each of its steps."""


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
    advantages_N: Float[Tensor, " N"]
    weights_N_R: Float[Tensor, "N R"]
    """Factor of each token's advantage (see `rl.correction`); 1 where nothing is corrected."""

    @property
    def trained_tokens(self) -> int:
        """Number of trained tokens (K)."""
        return len(self.targets_K)

    def to(self, device: torch.device) -> MicroBatch:
        """The same on another device."""
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
    advantages_N: Float[Tensor, " N"]
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
        counts_F = torch.cat([torch.zeros(1, dtype=torch.long), self.trained_F.cumsum(0)])
        return counts_F[self.starts_N + self.lengths_N] - counts_F[self.starts_N]

    def micro_batches(self, indices: Int[Tensor, " M"], size: int, pad_id: int) -> Iterator[MicroBatch]:
        """The items at `indices`, shortest first, at most `size` at a time.

        Args:
            indices: Items to take (M,).
            size: Most items in each micro-batch, at least 1.
            pad_id: Token id that fills up the rows.
        """
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
            advantages_N=self.advantages_N[rows],
            weights_N_R=mask_N_R.float() if self.weights_F is None else self.weights_F[sources_N_R] * mask_N_R,
        )


def pack(groups: Sequence[Group], advantages: Advantages) -> RolloutBatch:
    """Sampled groups as a batch: one item for each step that holds a completion with tokens.

    Args:
        groups: What was sampled. A group's position is its items' prompt index.
        advantages: One for each trajectory, group after group, which all of its steps carry; or for each a row with one for
            each of its steps.

    Raises:
        ValueError: not one advantage a trajectory or not one a step, a completion without log-probs, or one without a prompt.
    """
    trajectories = [(index, trajectory) for index, group in enumerate(groups) for trajectory in group.trajectories]
    if len(advantages) != len(trajectories):
        raise ValueError(
            f"Expected one advantage for each of {len(trajectories)} trajectories, found {len(advantages)}."
        )
    items: list[tuple[Sequence[int], Sequence[int]]] = []
    log_probs: list[Sequence[float]] = []
    masks: list[Sequence[bool]] = []
    item_advantages: list[float] = []
    prompt_index: list[int] = []
    for (index, trajectory), given in zip(trajectories, advantages, strict=True):
        row = [*given] if isinstance(given, Sequence) else [float(given)] * len(trajectory.steps)
        if len(row) != len(trajectory.steps):
            raise ValueError(
                f"Task {trajectory.task.id!r}: expected one advantage for each of {len(trajectory.steps)} steps, found {len(row)}."
            )
        for step, advantage in zip(trajectory.steps, row, strict=True):
            if step.completion is None or not step.completion.token_ids:
                continue
            if len(step.completion.logprobs) != len(step.completion.token_ids):
                raise ValueError(
                    f"Task {trajectory.task.id!r}: a completion of {len(step.completion.token_ids)} tokens has "
                    f"{len(step.completion.logprobs)} log-probs. The learner needs the log-prob each was sampled with."
                )
            items.append((step.prompt_ids, step.completion.token_ids))
            log_probs.append(step.completion.logprobs)
            masks.append(step.completion.mask or (True,) * len(step.completion.token_ids))
            item_advantages.append(advantage)
            prompt_index.append(index)
    return _flatten(items, log_probs, masks, item_advantages, prompt_index)


def pack_demonstrations(demonstrations: Sequence[EncodedDemonstration]) -> RolloutBatch:
    """Examples to imitate as a batch: the response tokens that the mask does not leave out; each is a prompt of its own.

    Raises:
        ValueError: an example has no prompt tokens or no response tokens.
    """
    if any(len(example.response_ids) == 0 for example in demonstrations):
        raise ValueError("A demonstration has an empty response: there is nothing to learn from it.")
    zeros = [[0.0] * len(example.response_ids) for example in demonstrations]
    masks = [example.mask or [True] * len(example.response_ids) for example in demonstrations]
    pairs = [(example.prompt_ids, example.response_ids) for example in demonstrations]
    return _flatten(pairs, zeros, masks, [1.0] * len(pairs), list(range(len(pairs))))


def _flatten(
    items: Sequence[tuple[Sequence[int], Sequence[int]]],
    log_probs: Sequence[Sequence[float]],
    masks: Sequence[Sequence[bool]],
    advantages: Sequence[float],
    prompt_index: Sequence[int],
) -> RolloutBatch:
    if any(len(prompt) == 0 for prompt, _ in items):
        raise ValueError("An item has no prompt tokens: the first response token would have nothing to follow.")
    prompt_lengths = torch.tensor([len(prompt) for prompt, _ in items], dtype=torch.long)
    response_lengths = torch.tensor([len(response) for _, response in items], dtype=torch.long)
    parts = torch.stack([prompt_lengths, response_lengths], dim=1).flatten()
    response = torch.tensor([False, True]).repeat(len(items)).repeat_interleave(parts)
    trained = torch.zeros(len(response), dtype=torch.bool)
    trained[response] = torch.tensor(list(chain.from_iterable(masks)), dtype=torch.bool)
    old_log_probs = torch.zeros(len(response), dtype=torch.float32)
    old_log_probs[response] = torch.tensor(list(chain.from_iterable(log_probs)), dtype=torch.float32)
    tokens = chain.from_iterable(chain.from_iterable(items))
    return RolloutBatch(
        tokens_F=torch.tensor(list(tokens), dtype=torch.long),
        prompt_lengths_N=prompt_lengths,
        response_lengths_N=response_lengths,
        old_log_probs_F=old_log_probs,
        trained_F=trained,
        advantages_N=torch.tensor(list(advantages), dtype=torch.float32),
        prompt_index_N=torch.tensor(list(prompt_index), dtype=torch.long),
    )
