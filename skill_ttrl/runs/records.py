"""Lines of the append files that hold more than figures: trajectories and votes.

One function a file, so that the fields stand in one place; docs/run-folder.md lists them.
"""

from __future__ import annotations

import json

from skill_ttrl.types import Group, VoteResult, to_json


def trajectory_lines(phase: str, step: int, group: Group) -> list[str]:
    """Lines of `trajectories.jsonl`: each try of a group with `phase`, `step` and `sample` (its place in the group)."""
    return [
        _with({"phase": phase, "step": step, "sample": sample}, to_json(trajectory))
        for sample, trajectory in enumerate(group.trajectories)
    ]


def vote_line(phase: str, step: int, task_id: str, vote: VoteResult, *, correct: bool | None = None) -> str:
    """A line of `votes.jsonl`. `correct` says if the winner is true, None without a label: it measures and is never fed back."""
    return _with({"phase": phase, "step": step, "task_id": task_id, "correct": correct}, to_json(vote))


def _with(fields: dict[str, object], line: str) -> str:
    """`line`, a JSON object, with `fields` put before its own."""
    return f"{json.dumps(fields)[:-1]}, {line[1:]}"
