"""Rollouts as tensors: the only place where they are defined. `pack` makes them.

A training item is one prompt and the completion sampled from it, so a trajectory of several turns gives several items; or, where a
trajectory's tokens only grow, its first prompt and all that follows, words of the environment among them. A *turn* of a batch is a
completion with the tokens before it in its item: the prompt, or what the environment said since the turn before.
`RolloutBatch` holds all items flat; `micro_batch.lay_out` lays some of them out as a `MicroBatch`, padded or packed.

Suffixes name the dimensions: _N items, _S turns, _F flat over all tokens of all items, _K trained tokens, _U sets of allowed tokens, _P ids
in all of these sets.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from skill_ttrl.types import Completion, Group, Step, Trajectory


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
    """`token_level_rewards`: scores less the KL penalty, where there is one (`rl.learner.apply_kl_penalty`)."""
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
    """Importance weight of each token's loss (see `rl.learner.corrected`); None: 1 everywhere."""
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

    def trained_places(self, rows: Int[Tensor, " N"]) -> Int[Tensor, " K"]:
        """Where the trained tokens of these items are in the flat tensors, item after item."""
        starts, lengths = self.starts_N[rows, None], self.lengths_N[rows, None]
        columns = torch.arange(int(lengths.max()))
        flat = (starts + columns).clamp(max=len(self.trained_F) - 1)
        return flat[(columns < lengths) & self.trained_F[flat]]


# From sampled groups to a `RolloutBatch`: an item for each step that holds a completion with tokens, or for each whole episode.
#
# Where a step's prompt is the tokens before it and more (`agent.context_mode: episode`), the steps of a trajectory can be joined: one item,
# whose response is all that follows the first prompt. Each token has the same tokens before it as in an item of its step alone, so
# log-probs and gradients are the same, and what the steps begin with is computed once.


Advantages = Sequence[float | Sequence[float | Sequence[float]]]
"""An entry for each trajectory: one number for all of its steps, or a row with an entry for each step. That is one number for
all of the step's tokens, or a row with one for each token of its completion (none where it has no completion)."""


class EncodedDemonstration(NamedTuple):
    """One example to imitate, as tokens."""

    prompt_ids: Sequence[int]
    response_ids: Sequence[int]
    mask: Sequence[bool] | None = None
    """For each response token whether it is learnt; None: all are."""
    labels: Sequence[int] | None = None
    """For each response token what is learnt in its place: an expert's token, where another was executed (DAgger). None: itself."""

    @property
    def length(self) -> int:
        """Tokens of prompt and response together."""
        return len(self.prompt_ids) + len(self.response_ids)


class _Item(NamedTuple):
    prompt_ids: Sequence[int]
    token_ids: Sequence[int]
    logprobs: Sequence[float]
    """One for each response token, as `mask` and `steps`."""
    mask: Sequence[bool]
    steps: Sequence[int]
    """Step of each response token; -1 between two steps."""
    prompt_index: int
    trajectory_index: int
    scores: Sequence[float]
    """Of each step in it."""
    allowed: Sequence[Sequence[int] | None] = ()
    """The set that each response token was drawn from; empty or None: any token."""


def pack(groups: Sequence[Group], *, invalid_action_penalty_coef: float = 0.0, join: bool = False) -> RolloutBatch:
    """Pack sampled groups into a batch.

    A group's position is its items' prompt index. The score of a step is its trajectory's reward, less `invalid_action_penalty_coef` where
    the step's action was invalid; it stands at the step's last trained token (verl: `token_level_scores`). Advantages are 0.

    Args:
        groups: Rollouts with rewards.
        invalid_action_penalty_coef: Taken off the score of each step whose action was invalid.
        join: Make one item of consecutive steps, each of whose prompts begins with the tokens before it. A trajectory in which
            another prompt comes gives several items.

    Raises:
        ValueError: a completion without log-probs, or one without a prompt.
    """
    items: list[_Item] = []
    for prompt, number, trajectory in _numbered(groups):
        reward = trajectory.reward or 0.0
        for run in _runs(trajectory, join):
            scores = [reward - invalid_action_penalty_coef * (step.action_status == "invalid") for _, step, _ in run]
            items.append(_item(trajectory, run, prompt, number, scores))
    return _flatten(items)


def _runs(trajectory: Trajectory, join: bool) -> list[list[tuple[int, Step, Completion]]]:
    """Steps of each item; with `join` a step joins the previous one if its prompt extends that one's tokens."""
    runs: list[list[tuple[int, Step, Completion]]] = []
    before: tuple[int, ...] = ()
    for at, step, done in _items(trajectory):
        if join and runs and step.prompt_ids[: len(before)] == before:
            runs[-1].append((at, step, done))
        else:
            runs.append([(at, step, done)])
        before = (*step.prompt_ids, *done.token_ids)
    return runs


def _item(
    trajectory: Trajectory,
    run: Sequence[tuple[int, Step, Completion]],
    prompt: int,
    number: int,
    scores: Sequence[float],
) -> _Item:
    first, limited = run[0][1].prompt_ids, any(done.allowed is not None for _, _, done in run)
    tokens: list[int] = []
    logprobs: list[float] = []
    mask: list[bool] = []
    steps: list[int] = []
    allowed: list[Sequence[int] | None] = []
    for at, step, done in run:
        count = len(done.token_ids)
        if len(done.logprobs) != count:
            raise ValueError(
                f"Task {trajectory.task.id!r}: a completion of {count} tokens has {len(done.logprobs)} log-probs. The learner needs "
                "the log-prob each was sampled with."
            )
        between = step.prompt_ids[len(first) + len(tokens) :]  # what the environment said
        tokens += (*between, *done.token_ids)
        logprobs += (*(0.0,) * len(between), *done.logprobs)
        mask += (*(False,) * len(between), *(done.completion_mask or (True,) * count))
        steps += (*(-1,) * len(between), *(at,) * count)
        if limited:
            sets = (None,) * count if done.allowed is None else done.allowed
            allowed += (*(None,) * len(between), *sets)
    return _Item(first, tokens, logprobs, mask, steps, prompt, number, scores, allowed)


def with_advantages(batch: RolloutBatch, groups: Sequence[Group], advantages: Advantages | Tensor) -> RolloutBatch:
    """Set the advantages of the batch that `pack(groups)` gave.

    Args:
        batch: F tokens.
        groups: As they were packed.
        advantages: An entry for each trajectory, group after group; or a flat tensor of F values.

    Raises:
        ValueError: not one advantage a trajectory, a step or a token.
    """
    if isinstance(advantages, Tensor):
        if advantages.shape != batch.advantages_F.shape:
            raise ValueError(
                f"Expected advantages of shape {tuple(batch.advantages_F.shape)}, one for each token of the flat batch, found "
                f"{tuple(advantages.shape)}."
            )
        return replace(batch, advantages_F=advantages.float() * batch.trained_F)
    trajectories = list(_numbered(groups))
    _check_count(f"Of {len(trajectories)} trajectories", "trajectories", len(trajectories), len(advantages))
    rows: list[Sequence[float]] = []
    for (_, _, trajectory), given in zip(trajectories, advantages, strict=True):
        who = f"Task {trajectory.task.id!r}"
        by_step = given if isinstance(given, Sequence) else [given] * len(trajectory.steps)
        _check_count(who, "steps", len(trajectory.steps), len(by_step))
        for at, _, done in _items(trajectory):
            row = by_step[at]
            values = row if isinstance(row, Sequence) else [row] * len(done.token_ids)
            _check_count(who, "tokens of a step", len(done.token_ids), len(values))
            rows.append(values)
    advantages_F = torch.zeros(len(batch.tokens_F))
    advantages_F[batch.step_F >= 0] = torch.tensor([*chain.from_iterable(rows)])
    return replace(batch, advantages_F=advantages_F * batch.trained_F)


def pack_demonstrations(demonstrations: Sequence[EncodedDemonstration]) -> RolloutBatch:
    """Pack examples to imitate: the response tokens that the mask does not leave out; each is a prompt of its own.

    Raises:
        ValueError: an example has no prompt tokens or no response tokens, or not one label or mask entry for each of these.
    """
    items = []
    for index, (prompt, response, mask, labels) in enumerate(demonstrations):
        count = len(response)
        if count == 0:
            raise ValueError("A demonstration has an empty response: there is nothing to learn from it.")
        for name, given in (("mask", mask), ("labels", labels)):
            if given is not None and len(given) != count:
                raise ValueError(f"A demonstration has {count} response tokens, but {name} of {len(given)}.")
        items.append(_Item(prompt, response, [0.0] * count, mask or [True] * count, [0] * count, index, index, [0.0]))
    batch = _flatten(items)
    labels_F = None
    if any(each.labels is not None for each in demonstrations):
        rows = (each.response_ids if each.labels is None else each.labels for each in demonstrations)
        labels_F = batch.tokens_F.clone()
        labels_F[batch.step_F >= 0] = torch.tensor([*chain.from_iterable(rows)])
    return replace(batch, advantages_F=batch.trained_F.float(), labels_F=labels_F)


def _numbered(groups: Sequence[Group]) -> Iterator[tuple[int, int, Trajectory]]:
    """(group, number over all groups, trajectory) of every trajectory."""
    number = 0
    for prompt, group in enumerate(groups):
        for trajectory in group.trajectories:
            yield prompt, number, trajectory
            number += 1


def _items(trajectory: Trajectory) -> Iterator[tuple[int, Step, Completion]]:
    """(position, step, completion) of the steps that hold tokens."""
    for at, step in enumerate(trajectory.steps):
        if step.completion is not None and step.completion.token_ids:
            yield at, step, step.completion


def _check_count(where: str, what: str, expected: int, found: int) -> None:
    if found != expected:
        raise ValueError(f"{where}: expected one advantage for each of {expected} {what}, found {found}.")


def _flatten(items: Sequence[_Item]) -> RolloutBatch:
    if any(len(item.prompt_ids) == 0 for item in items):
        raise ValueError("An item has no prompt tokens: the first response token would have nothing to follow.")

    def column(values: Iterable[int]) -> Tensor:
        return torch.tensor([*values], dtype=torch.long)

    lengths = column(len(part) for item in items for part in (item.prompt_ids, item.token_ids))
    response_F = torch.tensor([False, True]).repeat(len(items)).repeat_interleave(lengths)

    def spread(rows: Iterable[Sequence[Any]], dtype: torch.dtype, fill: int = 0) -> Tensor:
        flat = torch.full((len(response_F),), fill, dtype=dtype)
        flat[response_F] = torch.tensor(list(chain.from_iterable(rows)), dtype=dtype)
        return flat

    tokens = chain.from_iterable((*item.prompt_ids, *item.token_ids) for item in items)
    log_probs = spread((item.logprobs for item in items), torch.float32)
    sets, numbers = _number_sets(items)
    batch = RolloutBatch(
        tokens_F=column(tokens),
        prompt_lengths_N=column(len(item.prompt_ids) for item in items),
        response_lengths_N=column(len(item.token_ids) for item in items),
        sampler_log_probs_F=log_probs,
        old_log_probs_F=log_probs,
        trained_F=spread((item.mask for item in items), torch.bool),
        scores_F=torch.zeros(len(response_F)),
        rewards_F=torch.zeros(len(response_F)),
        advantages_F=torch.zeros(len(response_F)),
        prompt_index_N=column(item.prompt_index for item in items),
        trajectory_index_N=column(item.trajectory_index for item in items),
        step_F=spread((item.steps for item in items), torch.long, fill=-1),
        allowed_F=spread(sets, torch.long, fill=-1) if numbers else None,
        allowed_ids_P=column(chain.from_iterable(numbers)) if numbers else None,
        allowed_sizes_U=column(map(len, numbers)) if numbers else None,
    )
    scores_F = batch.at_last_token(torch.tensor([score for item in items for score in item.scores]))
    return replace(batch, scores_F=scores_F, rewards_F=scores_F)


def _number_sets(items: Sequence[_Item]) -> tuple[Iterator[list[int]], dict[tuple[int, ...], int]]:
    """Number the distinct sets of allowed tokens: (for each item the number at each response token, -1 for any token; the numbers)."""
    numbers: dict[tuple[int, ...], int] = {}
    known = {id(None): -1}  # by identity: a long set is one object at all of its tokens
    for ids in chain.from_iterable(item.allowed for item in items):
        if ids is not None and id(ids) not in known:
            known[id(ids)] = numbers.setdefault(tuple(ids), len(numbers))
    return ([known[id(ids)] for ids in item.allowed or (None,) * len(item.token_ids)] for item in items), numbers
