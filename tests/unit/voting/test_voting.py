"""Votes: who wins, who is rewarded, and what the signs of a collapse are counted from."""

from __future__ import annotations

import pytest

from skill_ttrl.types import Labels, Task, VoteResult, from_json, to_json
from skill_ttrl.voting import (
    VoteHistory,
    apply_pseudo_labels,
    batch_majority_vote,
    label_metrics,
    majority_vote,
    restore_labels,
    trained_metrics,
)


def test_numbers_vote_together_in_the_first_voters_words() -> None:
    vote = majority_vote(["3", "0.5", "1/2", r"\frac{1}{2}", "3"])
    assert vote.answer == "0.5" and vote.majority_ratio == pytest.approx(0.6)
    assert vote.classes == (("0.5", 3), ("3", 2))


def test_ties_go_to_the_first_that_appeared_and_are_said() -> None:
    vote = majority_vote(["b", "a", "a", "b", "c"])
    assert vote.answer == "b" and vote.tie and vote.classes == (("b", 2), ("a", 2), ("c", 1))
    assert not majority_vote(["a"]).tie


def test_it_unpacks_as_three_and_survives_json() -> None:
    vote = majority_vote(["a", "b", "a"])
    answer, agreement, matches = vote
    assert (answer, agreement, matches) == ("a", pytest.approx(2 / 3), [True, False, True])
    assert from_json(VoteResult, to_json(vote)) == vote
    assert batch_majority_vote([["a", "b", "a"], []]) == [vote, majority_vote([])]


def test_history_counts_flips_by_meaning() -> None:
    history = VoteHistory()
    first = history.record({"p": majority_vote(["1/2"]), "q": majority_vote(["3"]), "r": majority_vote([None])})
    assert "flip_rate" not in first
    assert first == {
        "majority_ratio": pytest.approx(2 / 3),
        "abstained": pytest.approx(1 / 3),
        "ties": 0.0,
        "winners": 2.0,
        "distinct_winners": 1.0,
    }
    second = history.record({"p": majority_vote(["0.5"]), "q": majority_vote(["4", "5"]), "r": majority_vote(["4"])})
    assert second["flip_rate"] == 0.5  # q changed, p is the same number, r had no winner before
    assert second["distinct_winners"] == pytest.approx(2 / 3) and second["ties"] == pytest.approx(1 / 3)
    third = history.record({"q": majority_vote([None, None])})
    assert "flip_rate" not in third and "distinct_winners" not in third
    fourth = history.record({"q": majority_vote(["4.0"])})
    assert fourth["flip_rate"] == 0.0  # an empty vote in between is forgotten


def test_label_metrics_by_hand() -> None:
    groups: list[list[str | None]] = [["4", "4.0", "5", None], ["1", "1", "2", "2"]]
    votes = batch_majority_vote(groups)
    names = label_metrics(votes, ["4", "2"], groups)
    assert names == {
        "label_accuracy": 0.5,  # 4 is true, 1 is not
        "reward_accuracy": 0.5,  # all four rewards right, then none
        "ground_truth_ratio": 0.5,
        "ground_truth_split_ratio": 0.0,
        "majority_voting_reward": 0.5,
        "pass@4": 1.0,
    }
    silent = batch_majority_vote([[None, ""]])
    nothing = {name.replace("@4", "@2"): 0.0 for name in names}
    assert label_metrics(silent, ["4"], [[None, ""]]) == nothing | {"reward_accuracy": 1.0}


def test_trained_metrics_look_at_the_samples_that_were_kept() -> None:
    groups: list[list[str | None]] = [["4", "4", "5", None], ["1", "1", "2", "3"]]
    votes = batch_majority_vote(groups)
    kept = [[0, 2], [2, 3]]
    votes = [vote.select(places) for vote, places in zip(votes, kept, strict=True)]
    chosen = [[answers[place] for place in places] for answers, places in zip(groups, kept, strict=True)]
    assert trained_metrics(votes, ["4", "2"], chosen, 2) == {
        "post_reward_accuracy": 0.75,  # 4 and 5 rewarded rightly; 2 is true and was not, 3 is not and was not
        "post_ground_truth_ratio": 0.5,
        "post_pass@2": 1.0,
    }
    assert trained_metrics([], [], [], 2) == {}


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
