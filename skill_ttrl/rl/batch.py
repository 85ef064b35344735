"""Rollouts as tensors: the only place where they are defined. `pack` makes them.

A training item is one prompt and the completion sampled from it, so a trajectory of several turns gives several items; or, where a
trajectory's tokens only grow, its first prompt and all that follows, words of the environment among them. A *turn* of a batch is a
completion with the tokens before it in its item: the prompt, or what the environment said since the turn before.
`RolloutBatch` holds all items flat; `micro_batches` cuts it into `MicroBatch`es, padded or packed (see `rl.forward`).

Suffixes name the dimensions: _N items, _S turns, _F flat over all tokens of all items, _K trained tokens, _U sets of allowed tokens, _P ids
in all of these sets.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from skill_ttrl.rl.forward.micro_batch import MicroBatch, cut_micro_batches, pack_tree, pad


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
    """`token_level_rewards`: scores less the KL penalty, where there is one (`rl.learn.apply_kl_penalty`)."""
    advantages_F: Float[Tensor, " F"]
    """Of each response token; 0 at prompt tokens."""
    prompt_index_N: Int[Tensor, " N"]
    """Which group (prompt) an item belongs to."""
    trajectory_index_N: Int[Tensor, " N"]
    """Which trajectory, counted over all groups."""
    step_F: Int[Tensor, " F"]
    """Step of its trajectory at each token of a completion; -1 at prompts, and at words of the environment within an item."""
    ref_log_probs_F: Float[Tensor, " F"] | None = None
    """Log-probs of the reference model; None where nothing needs them."""
    values_F: Float[Tensor, " F"] | None = None
    """Critic's values, before each token is sampled; None without a critic."""
    returns_F: Float[Tensor, " F"] | None = None
    """Returns that the critic learns to predict; None without a critic."""
    weights_F: Float[Tensor, " F"] | None = None
    """Importance weight of each token's loss (see `rl.correction`); None: 1 everywhere."""
    allowed_F: Int[Tensor, " F"] | None = None
    """Set of token ids that each token was drawn from (`Completion.allowed`), -1 for the whole vocabulary; None: all from that."""
    allowed_ids_P: Int[Tensor, " P"] | None = None
    """The ids of these sets, set after set."""
    allowed_sizes_U: Int[Tensor, " U"] | None = None
    """Ids in each set."""
    labels_F: Int[Tensor, " F"] | None = None
    """Token that is scored in the place of each trained one (`EncodedDemonstration.labels`); None: the token itself."""

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

    @cached_property
    def turn_F(self) -> Int[Tensor, " F"]:
        """Turn of each token; without joined steps its item."""
        ends = self._turn_ends_F.long()
        return ends.cumsum(0) - ends

    @cached_property
    def turn_places(self) -> list[tuple[int, int]]:
        """(trajectory, step) of each turn (S), in the order of the batch."""
        ends = self._turn_ends_F
        trajectories_S = self.trajectory_index_N[self.item_F[ends]]
        return [*zip(trajectories_S.tolist(), self.step_F[ends].tolist(), strict=True)]

    @cached_property
    def _turn_ends_F(self) -> Bool[Tensor, " F"]:
        """Last token of each completion."""
        follows_F = torch.zeros(len(self.step_F), dtype=torch.bool)
        follows_F[:-1] = (self.step_F[1:] == self.step_F[:-1]) & (self.item_F[1:] == self.item_F[:-1])
        return (self.step_F >= 0) & ~follows_F

    def at_last_token(self, values_S: Float[Tensor, " S"]) -> Float[Tensor, " F"]:
        """Each turn's value at its last trained token, 0 elsewhere. A turn without trained tokens loses its value."""
        trained = self.trained_F.nonzero().squeeze(1)
        last_S = torch.full((len(values_S),), -1).scatter_reduce(0, self.turn_F[trained], trained, "amax")
        has_any = last_S >= 0
        flat = torch.zeros(len(self.tokens_F))
        flat[last_S[has_any]] = values_S[has_any].float()
        return flat

    def sum_by_turn(self, values_F: Float[Tensor, " F"]) -> Float[Tensor, " S"]:
        """Sum of each turn's values."""
        return torch.zeros(len(self.turn_places), dtype=values_F.dtype).index_add(0, self.turn_F, values_F)

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

    @cached_property
    def prompt_keys(self) -> list[int]:
        """A number for each item; the same for the same prompt tokens."""
        text = self.tokens_F.numpy().tobytes()
        width = self.tokens_F.element_size()
        found: dict[bytes, int] = {}
        spans = zip(self.starts_N.tolist(), self.prompt_lengths_N.tolist(), strict=True)
        return [found.setdefault(text[width * start : width * (start + length)], len(found)) for start, length in spans]

    def micro_batches(
        self, indices: Int[Tensor, " M"], size: int, pad_id: int, *, packed: bool = False
    ) -> Iterator[MicroBatch]:
        """The items at `indices` (M,) in micro-batches: see `cut_micro_batches` and `micro_batch`."""
        for rows in cut_micro_batches(self, indices, sequences=size, packed=packed):
            yield self.micro_batch(rows, pad_id, packed=packed)

    def micro_batch(self, rows: Int[Tensor, " N"], pad_id: int, *, packed: bool = False) -> MicroBatch:
        """Lay these items out for the model: padded with `pad_id`, or `packed` as a prefix tree."""
        return pack_tree(self, rows) if packed else pad(self, rows, pad_id)

    def trained_places(self, rows: Int[Tensor, " N"]) -> Int[Tensor, " K"]:
        """Where the trained tokens of these items are in the flat tensors, item after item."""
        starts, lengths = self.starts_N[rows, None], self.lengths_N[rows, None]
        columns = torch.arange(int(lengths.max()))
        flat = (starts + columns).clamp(max=len(self.trained_F) - 1)
        return flat[(columns < lengths) & self.trained_F[flat]]
