"""Lines of the append files that hold more than figures: trajectories, votes and evaluations.

One function a file, so that the fields stand in one place; docs/run-folder.md lists them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Literal

from skill_ttrl.types import Group, VoteResult, to_json

EvaluationMode = Literal["sample", "greedy"]


def trajectory_lines(phase: str, step: int, group: Group) -> list[str]:
    """Lines of `trajectories.jsonl`: each try of a group with `phase`, `step` and `sample` (its place in the group)."""
    return [
        _with({"phase": phase, "step": step, "sample": sample}, to_json(trajectory))
        for sample, trajectory in enumerate(group.trajectories)
    ]


def vote_line(phase: str, step: int, task_id: str, vote: VoteResult, *, correct: bool | None = None) -> str:
    """A line of `votes.jsonl`.

    Args:
        phase: Phase of the run.
        step: Step the vote belongs to.
        task_id: The task that was voted on.
        vote: Its outcome.
        correct: Whether the winner is the true answer; None where no label is known. It measures and is never fed back.
    """
    return _with({"phase": phase, "step": step, "task_id": task_id, "correct": correct}, to_json(vote))


def evaluation_line(
    when: str,
    task_id: str,
    answers_K: Sequence[str | None],
    correct_K: Sequence[bool] | None,
    *,
    majority: str | None,
    majority_correct: bool | None,
    mode: EvaluationMode = "sample",
    temperature: float = 0.0,
) -> str:
    """A line of `evaluations.jsonl`: the answers to one problem of one evaluation.

    Args:
        when: Which evaluation: "before", "after" or `"rl-000010"` for one in between.
        task_id: The problem.
        answers_K: Final answers, None where there was none.
        correct_K: Whether each is right; None where no label is known.
        majority: The answer of the vote over them.
        majority_correct: Whether it is right.
        mode: Sampled or greedy.
        temperature: Of the samples; 0 for greedy.
    """
    return json.dumps(
        {
            "when": when,
            "mode": mode,
            "temperature": temperature,
            "task_id": task_id,
            "answers": list(answers_K),
            "correct": None if correct_K is None else [bool(value) for value in correct_K],
            "majority": majority,
            "majority_correct": majority_correct,
        },
        ensure_ascii=False,
    )


def _with(fields: dict[str, object], line: str) -> str:
    """`line`, a JSON object, with `fields` put before its own."""
    return f"{json.dumps(fields)[:-1]}, {line[1:]}"
