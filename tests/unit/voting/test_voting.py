"""Votes: who wins, who is rewarded, and what the signs of a collapse are counted from."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skill_ttrl.answers import canonical
from skill_ttrl.config import SkillTTRLConfig
from skill_ttrl.progress import SilentProgress
from skill_ttrl.runs.folder import RunFolder, Warned
from skill_ttrl.runs.reader import read_run, warnings_of
from skill_ttrl.train.metrics import answer_metrics
from skill_ttrl.train.run import WarningLog, warn_of_undecided_answers
from skill_ttrl.types import Group, Labels, Step, Task, Trajectory, VoteResult, from_json, to_json
from skill_ttrl.voting import (
    STRATEGIES,
    Ballot,
    UndecidedAnswers,
    VoteHistory,
    apply_pseudo_labels,
    batch_majority_vote,
    given_up,
    label_metrics,
    majority_vote,
    restore_labels,
    trained_metrics,
    vote,
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
        "tripwire/top_winner": 0.5,
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


POWERS = ["9**9**9**9", "8**8**8**8"]
"""Too large to try: `undecided`."""

LONG = "7" * 3000
"""`too_long`."""


def test_different_answers_are_counted_with_their_reasons() -> None:
    answers = ["1", "1", "1.0", None, "", " ", "no idea", *POWERS, POWERS[0], LONG]
    found = given_up(answers)
    assert (found.count, found.distinct) == (3, 6), "of 1, 1.0, no idea, two powers and a long one"
    assert list(found.reasons.items()) == [("undecided", 2), ("too_long", 1)]
    random.Random(0).shuffle(answers)
    assert given_up(answers) == found and given_up([]) == UndecidedAnswers()


def group(*answers: str | None) -> Group:
    task = Task("t", "E-v0")
    step = Step("q", "a", 0.0, True, False)
    return Group(task, tuple(Trajectory(task, (step,), answer, "terminated") for answer in answers))


@pytest.mark.parametrize(
    ("question", "answer", "copied"),
    [
        ("Which number comes after 6303?", "6303", 1.0), ("Which number comes after 6303?", "630", 0.0),
        ("1.5 or 2?", "1", 0.0), ("Half of 1,000?", "1", 0.0), ("Half of 1,000?", "000", 0.0), ("1.5 or 2?", "1.5", 1.0), ("Is a (b) c?", "(b)", 1.0), (7, "7", None), ("7?", None, None),
    ],
)  # fmt: skip
def test_winners_that_copy_their_question(question: object, answer: str | None, copied: float | None) -> None:
    made = group(answer)
    asked = replace(made, task=replace(made.task, options={"question": question}))
    assert answer_metrics([asked], batch_majority_vote([[answer]])).get("copied_winners") == copied


def test_a_step_counts_them_and_a_run_warns_once(tmp_path: Path) -> None:
    groups = [group("1", "1", POWERS[0]), group(POWERS[0], POWERS[1], None)]
    figures = answer_metrics(groups, batch_majority_vote([each.answers for each in groups]))
    assert figures["undecided_answers"] == 2.0, "different answers of the step, not samples"
    with RunFolder.create(tmp_path / "run", SkillTTRLConfig()) as folder:
        warn = WarningLog(SilentProgress(), folder)
        warn_of_undecided_answers(warn, "step 0", [group("1", "2")])
        assert not warn.texts
        for step in (1, 2):
            warn.place = ("rl", step)
            warn_of_undecided_answers(warn, f"step {step}", groups)
    assert len(warn.texts) == 1 and "2 of 3" in warn.texts[0]
    assert warnings_of(read_run(tmp_path / "run")) == [Warned(warn.texts[0], "rl", 1)], "also while the run goes on"


WORDS = [None, "", " ", "1", "1.0", "2", "4/2", "x", "X.", "3"]


@st.composite
def ballots(draw: st.DrawFn) -> Ballot:
    size = draw(st.integers(0, 12))
    answers = draw(st.lists(st.sampled_from(WORDS), min_size=size, max_size=size))
    sums = st.floats(-60, 0, allow_nan=False)
    return Ballot(
        answers=tuple(answers),
        prompt="p",
        logprobs=tuple(draw(st.lists(sums, min_size=size, max_size=size))),
        lengths=tuple(draw(st.lists(st.integers(0, 9), min_size=size, max_size=size))),
        base_answers=tuple(draw(st.lists(st.sampled_from(WORDS), max_size=6))),
    )


def test_the_answers_that_are_drawn_are_what_they_seem() -> None:
    keys = [canonical(word) for word in WORDS]
    assert keys[:3] == [None] * 3 and keys[3] == keys[4] != keys[5] == keys[6] and keys[7] == keys[8]


@pytest.mark.parametrize("name", list(STRATEGIES))
@given(ballot=ballots())
def test_silence_never_wins_and_nothing_is_counted_twice(name: str, ballot: Ballot) -> None:
    found = vote(name, ballot)
    keys = [canonical(answer) for answer in ballot.answers]
    assert canonical(found.answer) is not None or found.answer is None
    for key, match, earned in zip(keys, found.matches, found.sample_rewards, strict=True):
        assert match == (key is not None and key == canonical(found.answer))
        assert earned >= 0 and (key is not None or earned == 0)
    counts = Counter(key for key in keys if key is not None)
    assert [votes for _, votes in found.classes] == sorted(counts.values(), reverse=True)
    assert sum(votes for _, votes in found.classes) + found.abstained == len(keys)
    assert 0 <= found.majority_ratio <= 1
    assert not found.scores or (len(found.scores) == len(found.classes) and min(found.scores) >= 0)


@pytest.mark.parametrize("name", [name for name in STRATEGIES if name != "sequential"])  # which goes by the order
@given(ballot=ballots(), randomness=st.randoms(use_true_random=False))
def test_the_order_of_the_samples_decides_nothing_but_ties(
    name: str, ballot: Ballot, randomness: random.Random
) -> None:
    order = list(range(len(ballot.answers)))
    randomness.shuffle(order)
    assert ballot.logprobs is not None and ballot.lengths is not None
    other = replace(
        ballot,
        answers=tuple(ballot.answers[place] for place in order),
        logprobs=tuple(ballot.logprobs[place] for place in order),
        lengths=tuple(ballot.lengths[place] for place in order),
    )
    found, shuffled = vote(name, ballot), vote(name, other)
    assert shuffled.tie == found.tie and shuffled.abstained == found.abstained
    assert by_class(shuffled) == by_class(found)
    if found.tie:
        return
    assert canonical(shuffled.answer) == canonical(found.answer)
    assert shuffled.majority_ratio == found.majority_ratio
    assert shuffled.matches == tuple(found.matches[place] for place in order)


def by_class(found: VoteResult) -> dict[str | None, tuple[int, float | None]]:
    """Votes and score of each class, to the last bit."""
    scores = found.scores or (None,) * len(found.classes)
    return {canonical(words): (votes, score) for (words, votes), score in zip(found.classes, scores, strict=True)}
