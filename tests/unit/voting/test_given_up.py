"""How many answers were given up, counted from the answers."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from skill_ttrl.progress import SilentProgress
from skill_ttrl.train.metrics import answer_metrics
from skill_ttrl.train.run import WarningLog, warn_of_undecided_answers
from skill_ttrl.types import Group, Step, Task, Trajectory
from skill_ttrl.voting import UndecidedAnswers, batch_majority_vote, given_up

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


def test_a_step_counts_them_and_a_run_warns_once() -> None:
    groups = [group("1", "1", POWERS[0]), group(POWERS[0], POWERS[1], None)]
    figures = answer_metrics(groups, batch_majority_vote([each.answers for each in groups]))
    assert figures["undecided_answers"] == 2.0, "different answers of the step, not samples"
    warn = WarningLog(SilentProgress())
    warn_of_undecided_answers(warn, "step 0", [group("1", "2")])
    assert not warn.texts
    for step in (1, 2):
        warn_of_undecided_answers(warn, f"step {step}", groups)
    assert len(warn.texts) == 1 and "2 of 3" in warn.texts[0]
