"""Votes as labels: a task keeps the true answer and the voted one, and either can be in force."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from skill_ttrl.types import Labels, Task, VoteResult


def apply_pseudo_labels(tasks: Sequence[Task], votes: Sequence[VoteResult]) -> list[Task]:
    """The tasks with what their votes, in the same order, gave as the label in force (TTRL: `apply_ttrl_gt`).

    `Task.labels` keeps both, whichever is in force, so that they can be compared at any time. A task whose vote nobody won has
    no label in force. What goes to training is still `Task.without_reference`, which drops both.

    Raises:
        ValueError: there is not one vote for each task.
    """
    if len(tasks) != len(votes):
        raise ValueError(f"Expected one vote for each of {len(tasks)} tasks, found {len(votes)}.")
    return [
        replace(task, reference=vote.answer, labels=Labels(_true(task), vote.answer))
        for task, vote in zip(tasks, votes, strict=True)
    ]


def restore_labels(tasks: Sequence[Task]) -> list[Task]:
    """The tasks with their true answers in force again (TTRL: `apply_original_gt`); the voted ones stay in `Task.labels`."""
    return [replace(task, reference=_true(task)) for task in tasks]


def _true(task: Task) -> str | None:
    return task.reference if task.labels is None else task.labels.true
