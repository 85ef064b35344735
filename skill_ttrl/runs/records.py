"""Lines of the append files that hold more than figures: trajectories and votes.

One function a file, so that the fields stand in one place; docs/run-folder.md lists them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields

from skill_ttrl.rollout.samples import TaskSamples
from skill_ttrl.types import Group, Labels, VoteResult, to_json


@dataclass(frozen=True, slots=True)
class SampleRecord:
    """Scores and advantages of one rollout, side by side: recorded, never fed back."""

    pseudo_score: float | None = None
    """Reward, before a KL penalty; None where the algorithm gives scores of its own and did not train on it."""
    original_score: float | None = None
    """1 where its answer is the true one, else 0; None without a label. The meter's."""
    advantages: Sequence[float | None] | None = None
    """Mean advantage of the trained tokens of each of its steps, None for one without; None where none was trained on."""
    gradient_shares: Sequence[float] | None = None
    """Share of each of its steps in the policy loss's gradient of the whole training step (`rl.learn.UpdateRecord`); None where it was not
    given to the update."""
    stopped_tokens: Sequence[int] | None = None
    """Tokens of each of its steps whose gradient a clip or a weight of 0 has stopped."""


_RECORD = tuple(field.name for field in fields(SampleRecord))


def trajectory_lines(phase: str, step: int, group: Group, records: Sequence[SampleRecord] = ()) -> list[str]:
    """Lines of `trajectories.jsonl`: each rollout of a group with `phase`, `step`, `sample` (its place in the group) and its record."""
    known = records or [SampleRecord(trajectory.reward) for trajectory in group.trajectories]
    # `asdict` would copy every number of every sample first.
    values = [{name: getattr(record, name) for name in _RECORD} for record in known]
    return [
        _with({"phase": phase, "step": step, "sample": sample, **record}, to_json(trajectory))
        for sample, (trajectory, record) in enumerate(zip(group.trajectories, values, strict=True))
    ]


def vote_line(
    phase: str, step: int, task_id: str, vote: VoteResult, *, correct: bool | None = None, labels: Labels | None = None
) -> str:
    """A line of `votes.jsonl`. `correct` says if the winner is true and `labels` holds both, None without a true answer: they measure
    and are never fed back.
    """
    known = None if labels is None else asdict(labels)
    return _with({"phase": phase, "step": step, "task_id": task_id, "correct": correct, "labels": known}, to_json(vote))


def eval_line(label: str, samples: TaskSamples, right: Sequence[bool | None]) -> str:
    """A line of `eval_samples.jsonl`: a problem's samples of the evaluation `label` under one way of sampling. `scores` are 1 for a
    right sample, 0 for another, None where nothing says which it is.
    """
    return _with(
        {"label": label, "scores": [None if each is None else float(each) for each in right]}, to_json(samples)
    )


def _with(fields: dict[str, object], line: str) -> str:
    """`line`, a JSON object, with `fields` put before its own; what is not finite becomes null."""
    return f"{json.dumps({key: _finite(value) for key, value in fields.items()}, allow_nan=False)[:-1]}, {line[1:]}"


def _finite(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return [_finite(each) for each in value] if isinstance(value, list | tuple) else value
