"""Rollouts from plain numbers, for tests of the learner: their groups, and flat values of a batch as matrices."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from skill_ttrl.rl.batch import RolloutBatch
from skill_ttrl.types import Completion, Group, Step, Task, Trajectory


def one_step(trained: Sequence[bool], *, observation: str = "", reward: float = 0.0) -> Step:
    """A step whose completion has one token for each entry; a token whose entry is False is not trained on."""
    length = len(trained)
    completion = Completion("", tuple(range(1, length + 1)), (-1.0,) * length, "stop", completion_mask=tuple(trained))
    info = {"state": "end"}
    return Step(observation, "", reward, True, False, prompt_ids=(1, 2), completion=completion, info=info)


def trajectory(
    steps: Sequence[Step], *, task: str = "t", reward: float | None = None, answer: str | None = None
) -> Trajectory:
    """A finished rollout."""
    return Trajectory(Task(id=task, env_id="e"), tuple(steps), answer, "terminated", reward, start_state="start")


def sampled_groups(mask: Tensor, rewards: Tensor | None = None, groups: Tensor | None = None) -> list[Group]:
    """Group rollouts of one step each, as long as their last trained token.

    Args:
        mask: 1 at trained tokens (N, R).
        rewards: Of each (N,); None: none yet.
        groups: Numbers of the groups (N,), in ascending order; None: all are of one group.
    """
    owners = [0] * len(mask) if groups is None else groups.tolist()
    found: dict[int, list[Trajectory]] = {}
    for number, row in enumerate(mask.bool().tolist()):
        length = max((place + 1 for place, trained in enumerate(row) if trained), default=len(row))
        earned = None if rewards is None else float(rewards[number])
        owner = owners[number]
        found.setdefault(owner, []).append(trajectory([one_step(row[:length])], task=f"t{owner}", reward=earned))
    return [Group(members[0].task, tuple(members)) for members in found.values()]


def flat(batch: RolloutBatch, values: Tensor) -> Tensor:
    """Values (N, R) of the response tokens, as the flat tensors of a batch hold them."""
    inside, places = _places(batch, values.shape[1])
    found = torch.zeros(len(batch.tokens_F), dtype=values.dtype)
    found[places[inside]] = values[inside]
    return found


def padded(batch: RolloutBatch, values_F: Tensor, width: int | None = None) -> Tensor:
    """The inverse of `flat`; 0 beyond a response."""
    inside, places = _places(batch, int(batch.response_lengths_N.max()) if width is None else width)
    found = torch.zeros(inside.shape, dtype=values_F.dtype)
    found[inside] = values_F[places[inside]]
    return found


def _places(batch: RolloutBatch, width: int) -> tuple[Tensor, Tensor]:
    """(where a response has a token, where it is in the flat tensors), both (N, width)."""
    columns = torch.arange(width)
    return columns < batch.response_lengths_N[:, None], (batch.starts_N + batch.prompt_lengths_N)[:, None] + columns


def per_item(batch: RolloutBatch) -> list[float]:
    """Advantage of the first token of each item."""
    values: list[float] = batch.advantages_F[batch.starts_N + batch.prompt_lengths_N].tolist()
    return values
