"""The vote laboratory's figures on votes that were counted by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skill_ttrl.commands.vote import Replayed, replay
from skill_ttrl.rollout.outcome import SAMPLE, Sample, TaskSamples
from skill_ttrl.types import Task

LABELLED = ("label_accuracy", "decided_accuracy", "reward_accuracy", "false_consensus")


def row(
    name: str, answers: Sequence[str | None], truth: str | None = None, kind: str = "", **known: Any
) -> TaskSamples:
    """A problem and the answers to it; `logprobs` and `lengths` as lists."""
    listed = {"logprob": "logprobs", "tokens": "lengths"}
    samples = tuple(
        Sample("", answer, **{one: known[many][place] for one, many in listed.items() if many in known})
        for place, answer in enumerate(answers)
    )
    return TaskSamples("", SAMPLE, Task(name, "", {"question": name}, task_type=kind, ground_truth=truth), samples)


SURE = row("sure", ["7", "7.0", "7", "7"], "7", "easy")
WRONG = row("wrong", ["3", "3", "3", "5"], "5", "hard")
SPLIT = row("split", ["1", "2", "4", None], "2", "hard")
SILENT = row("silent", [None, None, "", None], "9", "hard")
FOUR = [SURE, WRONG, SPLIT, SILENT]


def by_name(found: Sequence[Replayed]) -> dict[str, Replayed]:
    return {each.strategy: each for each in found}


def test_figures_of_the_majority_counted_by_hand() -> None:
    (majority,), votes = replay([FOUR], {"majority": {}})
    values = {name: figure.value for name, figure in majority.figures.items()}
    # Winners: 7 (true), 3 (wrong, 3 of 4), 1 (the first of a three-way tie, wrong, 1 of 4), nobody.
    assert values["label_accuracy"] == 1 / 4
    assert values["decided_accuracy"] == 1 / 3  # where somebody won
    # Samples that match the winner exactly if they are true: 4 of 4; 3, 3, 3 and 5 are all taken wrongly; of 1, 2, 4, None
    # the first matches and is wrong, the second is true and does not match: 2 of 4; nobody matches and nobody is true.
    assert values["reward_accuracy"] == (1 + 0 + 2 / 4 + 1) / 4
    assert values["majority_ratio"] == (1 + 3 / 4 + 1 / 4 + 0) / 4
    assert values["false_consensus"] == 1 / 4  # only `wrong` is both wrong and agreed upon
    assert values["abstained"] == 1 / 4
    assert [held.correct for held in votes["majority"]] == [True, False, False, False]
    assert not majority.differences
    for figure in majority.figures.values():
        assert 0 <= figure.interval[0] <= figure.value <= figure.interval[1] <= 1


def test_flips_between_visits() -> None:
    winners: list[str | None] = ["1", "1", "2", None, "2.0"]
    visits = [[row("again", [winner, winner]), row(f"once {n}", ["5"])] for n, winner in enumerate(winners)]
    (majority,), _ = replay(visits, {})
    # 1 → 1, 1 → 2, and 2 → 2.0 over the visit without a winner: one of three.
    assert majority.figures["flip_rate"].value == 1 / 3
    assert majority.figures["abstained"].value == pytest.approx((1 / 5) / 6)  # by problem: a fifth of one of six


def test_a_strategy_is_compared_problem_by_problem() -> None:
    # Confidence follows the surer sample. On `close` it turns the majority's mistake around; on the others it agrees.
    close = [row(f"close {n}", ["3", "3", "5"], "5", logprobs=[-9.0, -9.0, -0.1], lengths=[1, 1, 1]) for n in range(12)]
    agreed = [row(f"agreed {n}", ["7", "7"], "7", logprobs=[-1.0, -1.0], lengths=[1, 1]) for n in range(12)]
    found = by_name(replay([[*close, *agreed]], {"confidence": {}, "sequential": {}})[0])
    gain = found["confidence"].differences["label_accuracy"]
    assert found["majority"].figures["label_accuracy"].value == 0.5
    assert found["confidence"].figures["label_accuracy"].value == 1.0
    assert gain.value == 0.5 and gain.interval[0] > 0.25 and gain.verdict == "better" and gain.problems == 24
    # A false consensus of 2/3 on half of the problems, and none with confidence.
    assert found["confidence"].differences["false_consensus"].value == -0.5
    assert found["sequential"].differences["label_accuracy"].verdict == "unclear"  # the same winners everywhere
    low, high = found["sequential"].differences["label_accuracy"].interval
    assert low == pytest.approx(-high) and high > 0.1, "no change of 24 problems is no proof that nothing changes"


def test_where_some_problems_have_no_true_answer_the_others_are_counted() -> None:
    (majority,), votes = replay([[SURE, row("open", ["1", "1"])]], {})
    assert majority.figures["label_accuracy"].problems == 1 and majority.figures["label_accuracy"].value == 1.0
    assert majority.figures["majority_ratio"].problems == 2
    assert [held.correct for held in votes["majority"]] == [True, None]


ANSWERS = st.lists(st.sampled_from(["1", "2", "3", "1.0", None, ""]), min_size=1, max_size=8)


@given(st.lists(ANSWERS, min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_the_order_of_samples_matters_only_in_ties(groups: list[list[str | None]], random: Any) -> None:
    rows = [row(str(place), answers, "1") for place, answers in enumerate(groups)]
    shuffled = [random.sample(answers, len(answers)) for answers in groups]
    others = [row(str(place), answers, "1") for place, answers in enumerate(shuffled)]
    ((one,), votes), ((other,), _) = replay([rows], {}), replay([others], {})
    assert one.figures["majority_ratio"] == other.figures["majority_ratio"]
    assert one.figures["abstained"] == other.figures["abstained"]
    if not any(held.vote.tie for held in votes["majority"]):
        assert [one.figures[name] for name in LABELLED if name in one.figures] == [
            other.figures[name] for name in LABELLED if name in other.figures
        ]
    assert replay([rows], {})[0] == [one]  # a pure function
