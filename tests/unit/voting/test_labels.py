"""Pseudo and true labels side by side, and none of them where training can see it."""

from __future__ import annotations

from skill_ttrl.types import Labels, Task, from_json, to_json
from skill_ttrl.voting import apply_pseudo_labels, batch_majority_vote, restore_labels

TASKS = [
    Task("a", "Env-v0", {"question": "?"}, ground_truth="1"),
    Task("b", "Env-v0"),
    Task("c", "Env-v0", ground_truth="3"),
]
VOTES = batch_majority_vote([["7", "7", "8"], ["5"], ["", None]])


def test_the_voted_label_is_in_force_and_both_are_kept() -> None:
    applied = apply_pseudo_labels(TASKS, VOTES)
    assert [task.ground_truth for task in applied] == ["7", "5", None]
    assert [task.labels for task in applied] == [Labels("1", "7"), Labels(None, "5"), Labels("3", None)]
    restored = restore_labels(applied)
    assert [task.ground_truth for task in restored] == ["1", None, "3"]
    assert [task.labels for task in restored] == [task.labels for task in applied], "still there to be compared"
    assert [from_json(Task, to_json(task)) for task in applied] == applied
    assert restore_labels(TASKS) == TASKS


def test_training_is_given_neither() -> None:
    secret = Task("a", "Env-v0", {"question": "?"}, ground_truth="the-true-answer")
    applied = apply_pseudo_labels([secret], VOTES[:1])[0]
    for task in (secret, applied, restore_labels([applied])[0]):
        shown = to_json(task.without_ground_truth())
        assert "the-true-answer" not in shown and '"7"' not in shown
