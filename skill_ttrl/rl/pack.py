"""From sampled groups to a `RolloutBatch`: one item for each step that holds a completion with tokens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor

from skill_ttrl.rl.batch import RolloutBatch
from skill_ttrl.types import Completion, Group, Trajectory

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


class _Item(NamedTuple):
    prompt_ids: Sequence[int]
    token_ids: Sequence[int]
    logprobs: Sequence[float]
    """One for each response token, as `mask`."""
    mask: Sequence[bool]
    prompt_index: int
    trajectory_index: int = 0
    step_index: int = 0
    score: float = 0.0


def pack(groups: Sequence[Group], *, invalid_penalty: float = 0.0) -> RolloutBatch:
    """Pack sampled groups into a batch.

    A group's position is its items' prompt index. The score of an item is its trajectory's reward, less `invalid_penalty` where
    the step's action was invalid; it stands at the item's last trained token (verl: `token_level_scores`). Advantages are 0.

    Raises:
        ValueError: a completion without log-probs, or one without a prompt.
    """
    items: list[_Item] = []
    for prompt, number, trajectory in _numbered(groups):
        for at, step, done in _items(trajectory):
            if len(done.logprobs) != len(done.token_ids):
                raise ValueError(
                    f"Task {trajectory.task.id!r}: a completion of {len(done.token_ids)} tokens has {len(done.logprobs)} "
                    "log-probs. The learner needs the log-prob each was sampled with."
                )
            mask = done.mask or (True,) * len(done.token_ids)
            score = (trajectory.reward or 0.0) - invalid_penalty * (step.verdict == "invalid")
            items.append(_Item(step.prompt_ids, done.token_ids, done.logprobs, mask, prompt, number, at, score))
    return _flatten(items)


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
    return replace(batch, advantages_F=_spread(batch, rows) * batch.trained_F)


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
        items.append(_Item(prompt, response, [0.0] * count, mask or [True] * count, index, index))
    batch = _flatten(items)
    labels_F = None
    if any(each.labels is not None for each in demonstrations):
        rows = (each.response_ids if each.labels is None else each.labels for each in demonstrations)
        labels_F = batch.tokens_F.clone()
        labels_F[_responses(batch.prompt_lengths_N, batch.response_lengths_N)] = torch.tensor(
            [*chain.from_iterable(rows)]
        )
    return replace(batch, advantages_F=batch.trained_F.float(), labels_F=labels_F)


def _numbered(groups: Sequence[Group]) -> Iterator[tuple[int, int, Trajectory]]:
    """(group, number over all groups, trajectory) of every trajectory."""
    number = 0
    for prompt, group in enumerate(groups):
        for trajectory in group.trajectories:
            yield prompt, number, trajectory
            number += 1


def _items(trajectory: Trajectory) -> Iterator[tuple[int, Any, Completion]]:
    """(position, step, completion) of the steps that hold tokens."""
    for at, step in enumerate(trajectory.steps):
        if step.completion is not None and step.completion.token_ids:
            yield at, step, step.completion


def _check_count(where: str, what: str, expected: int, found: int) -> None:
    if found != expected:
        raise ValueError(f"{where}: expected one advantage for each of {expected} {what}, found {found}.")


def _spread(batch: RolloutBatch, rows: Iterable[Sequence[Any]]) -> Tensor:
    """Values of the response tokens, with zeros at the prompts."""
    flat = torch.zeros(len(batch.tokens_F))
    flat[_responses(batch.prompt_lengths_N, batch.response_lengths_N)] = torch.tensor([*chain.from_iterable(rows)])
    return flat


def _responses(prompt_lengths: Tensor, response_lengths: Tensor) -> Tensor:
    """Mask of the response tokens, flat over all items."""
    parts = torch.stack([prompt_lengths, response_lengths], dim=1).flatten()
    return torch.tensor([False, True]).repeat(len(prompt_lengths)).repeat_interleave(parts)


def _flatten(items: Sequence[_Item]) -> RolloutBatch:
    if any(len(item.prompt_ids) == 0 for item in items):
        raise ValueError("An item has no prompt tokens: the first response token would have nothing to follow.")
    prompt_lengths = torch.tensor([len(item.prompt_ids) for item in items], dtype=torch.long)
    response_lengths = torch.tensor([len(item.token_ids) for item in items], dtype=torch.long)
    response_F = _responses(prompt_lengths, response_lengths)

    def spread(rows: Iterable[Sequence[Any]], dtype: torch.dtype) -> Tensor:
        flat = torch.zeros(len(response_F), dtype=dtype)
        flat[response_F] = torch.tensor(list(chain.from_iterable(rows)), dtype=dtype)
        return flat

    def column(values: Iterable[int]) -> Tensor:
        return torch.tensor([*values], dtype=torch.long)

    tokens = chain.from_iterable((*item.prompt_ids, *item.token_ids) for item in items)
    log_probs = spread((item.logprobs for item in items), torch.float32)
    batch = RolloutBatch(
        tokens_F=torch.tensor(list(tokens), dtype=torch.long),
        prompt_lengths_N=prompt_lengths,
        response_lengths_N=response_lengths,
        sampler_log_probs_F=log_probs,
        old_log_probs_F=log_probs,
        trained_F=spread((item.mask for item in items), torch.bool),
        scores_F=torch.zeros(len(response_F)),
        rewards_F=torch.zeros(len(response_F)),
        advantages_F=torch.zeros(len(response_F)),
        prompt_index_N=column(item.prompt_index for item in items),
        trajectory_index_N=column(item.trajectory_index for item in items),
        step_index_N=column(item.step_index for item in items),
    )
    scores_F = batch.at_last_token(torch.tensor([item.score for item in items]))
    return replace(batch, scores_F=scores_F, rewards_F=scores_F)
