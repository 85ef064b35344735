"""Votes as labels: a task keeps the true answer and the voted one, and either can be in force."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from skill_ttrl.types import Group, Labels, Task, VoteResult

Labelled = TypeVar("Labelled", Task, Group)
"""A task, or the group of rollouts at one."""


def apply_pseudo_labels(tasks: Sequence[Labelled], votes: Sequence[VoteResult]) -> list[Labelled]:
    """Put the winners of votes in force as labels (TTRL: `apply_ttrl_gt`).

    `Task.labels` keeps both labels, whichever is in force, so that they can be compared at any time. A task whose vote nobody won
    has no label in force. What goes to training is still `Task.without_ground_truth`, which drops both.

    Args:
        tasks: Tasks, or groups of rollouts, whose own task is then labelled.
        votes: One for each, in the same order.

    Raises:
        ValueError: there is not one vote for each task.
    """
    if len(tasks) != len(votes):
        raise ValueError(f"Expected one vote for each of {len(tasks)} tasks, found {len(votes)}.")
    return [_voted(item, vote) for item, vote in zip(tasks, votes, strict=True)]


def restore_labels(tasks: Sequence[Labelled]) -> list[Labelled]:
    """Put the true answers in force again (TTRL: `apply_original_gt`); the voted ones stay in `Task.labels`."""
    return [_restored(item) for item in tasks]


apply_ttrl_gt = apply_pseudo_labels
apply_original_gt = restore_labels


def _voted(item: Labelled, vote: VoteResult) -> Labelled:
    if isinstance(item, Group):
        return replace(item, task=_voted(item.task, vote))
    return replace(item, ground_truth=vote.answer, labels=Labels(_true(item), vote.answer))


def _restored(item: Labelled) -> Labelled:
    if isinstance(item, Group):
        return replace(item, task=_restored(item.task))
    return replace(item, ground_truth=_true(item))


def _true(task: Task) -> str | None:
    return task.ground_truth if task.labels is None else task.labels.ground_truth
