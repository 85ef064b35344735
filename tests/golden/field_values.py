"""The values of `learner_values.json`, and what the tests that look at them have in common."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from skill_ttrl.rl.batch import RolloutBatch
from skill_ttrl.types import Completion, Group, Step, Task, Trajectory

DOCUMENT: dict[str, Any] = json.loads(Path(__file__).with_name("learner_values.json").read_text(encoding="utf-8"))
TOLERANCE = 1e-6
"""Relative and absolute. The values have nine digits; TRL computes advantages in float32."""


def cases(source: str, family: str) -> dict[str, dict[str, Any]]:
    """The cases of a library whose names are `family/NAME`, by NAME; `family` alone is ""."""
    found: dict[str, dict[str, Any]] = DOCUMENT[source]["cases"]
    split = {name: name.partition("/") for name in found}
    return {split[name][2]: case for name, case in found.items() if split[name][0] == family}


def tensor(name: str) -> Tensor:
    """An input by its name: float64, or integers."""
    values = torch.tensor(DOCUMENT["inputs"][name])
    return values.double() if values.is_floating_point() else values


def given(case: dict[str, Any]) -> dict[str, Tensor]:
    """A case's inputs, by the names of the library's arguments."""
    return {argument: tensor(name) for argument, name in case["inputs"].items()}


def assert_close(found: Any, expected: Any, where: str, mask: Tensor | None = None) -> None:
    """Check that our values are the library's, under the mask where there is one."""
    ours, theirs = torch.as_tensor(found).detach().double(), torch.as_tensor(expected).double()
    if mask is not None:
        ours, theirs = ours.expand_as(mask) * mask, theirs.expand_as(mask) * mask
    torch.testing.assert_close(ours, theirs, rtol=TOLERANCE, atol=TOLERANCE, msg=lambda text: f"{where}: {text}")


def sampled_groups(mask: Tensor, rewards: Tensor | None = None, groups: Tensor | None = None) -> list[Group]:
    """Rollouts of one step each, as long as their last trained token says; where the mask is 0 before that, a token is not trained."""
    lengths = [int(row.nonzero().max()) + 1 if row.any() else row.numel() for row in mask]
    owners = [0] * len(lengths) if groups is None else groups.tolist()
    found: dict[int, list[Trajectory]] = {}
    for number, (row, length) in enumerate(zip(mask, lengths, strict=True)):
        trained = tuple(bool(value) for value in row[:length])
        completion = Completion("", tuple(range(1, length + 1)), (-1.0,) * length, "stop", mask=trained)
        step = Step("", "", 0.0, True, False, prompt_ids=(1, 2), completion=completion)
        earned = None if rewards is None else float(rewards[number])
        trajectory = Trajectory(Task(id=f"t{owners[number]}", env_id="e"), (step,), None, "terminated", earned)
        found.setdefault(owners[number], []).append(trajectory)
    return [Group(members[0].task, tuple(members)) for members in found.values()]


def flat(batch: RolloutBatch, values: Tensor) -> Tensor:
    """Values (N, R) of the response tokens, as the flat tensors of a batch hold them."""
    columns = torch.arange(values.shape[1])
    inside = columns < batch.response_lengths_N[:, None]
    found = torch.zeros(len(batch.tokens_F), dtype=values.dtype)
    found[((batch.starts_N + batch.prompt_lengths_N)[:, None] + columns)[inside]] = values[inside]
    return found


def padded(batch: RolloutBatch, values_F: Tensor, width: int) -> Tensor:
    """The inverse of `flat`."""
    columns = torch.arange(width)
    inside = columns < batch.response_lengths_N[:, None]
    found = torch.zeros(len(batch), width, dtype=values_F.dtype)
    found[inside] = values_F[((batch.starts_N + batch.prompt_lengths_N)[:, None] + columns)[inside]]
    return found
