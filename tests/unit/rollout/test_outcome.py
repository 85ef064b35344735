"""Success and score of episodes that can be right in part: whose word counts, and figures counted by hand."""

from __future__ import annotations

from typing import Any

import pytest

from skill_ttrl.config import EvalConfig
from skill_ttrl.rollout.outcome import (
    GREEDY,
    EpisodeResult,
    count_by_type,
    count_success,
    drawn,
    episode_result,
    winning,
)
from skill_ttrl.statistics import mean_interval, wilson_interval
from skill_ttrl.train.measure import correctness, evaluate_samples
from skill_ttrl.types import Group, Step, Task, Trajectory

TASK = Task("t", "Shop-v0", task_type="fashion")


def is_correct(trajectory: Trajectory) -> bool | None:
    return correctness(drawn(Group(trajectory.task, (trajectory,))))[0]


def bought(score: float, *, task: Task = TASK, pays: float = 1.0, reward: float | None = None) -> Trajectory:
    """An episode of two steps that ends with a purchase worth `score`."""
    steps = (
        Step("a shop", "search[x]", 0.0, False, False, info={"won": False, "score": 0.0}),
        Step("a page", "click[buy now]", score * pays, True, False, info={"won": score == 1, "score": score}),
    )
    return Trajectory(task, steps, None, "terminated", reward=reward)


def ended(reward: float, **info: Any) -> Trajectory:
    return Trajectory(TASK, (Step("o", "a", reward, True, False, info=info),), None, "terminated")


def broken(task: Task = TASK) -> Trajectory:
    step = Step("o", "a", 0.5, False, False, info={"won": True, "score": 0.5})
    return Trajectory(task, (step,), None, "error", error="the till is stuck")


def test_what_the_environment_says_of_winning_decides_before_what_it_pays() -> None:
    assert ended(0.67, won=False).success is False and ended(0.0, won=True).success is True
    assert ended(0.67).success is True and ended(0.0).success is False, "where it says nothing, the return does"
    assert ended(0.67, won="no").success is True, "a text is no truth value"
    assert ended(1.0, won=True, graded=False).success is None
    assert is_correct(bought(0.67)) is False and is_correct(bought(1.0, pays=10)) is True
    assert episode_result(broken()).success is False


@pytest.mark.parametrize("score", [True, "0.5", None, float("nan"), 350, -1])
def test_only_a_number_from_0_to_1_is_a_score(score: object) -> None:
    assert ended(1.0, score=score).score is None


def outcome(task: str, score: float | None, kind: str = "fashion", error: str | None = None) -> EpisodeResult:
    return EpisodeResult(task, kind, score == 1, 3, error, "", score)


def test_score_and_success_of_episodes_counted_by_hand() -> None:
    found = count_success([outcome("a", 1.0), outcome("b", 0.5), outcome("c", 0.0), outcome("d", None, error="stuck")])
    assert found.success == 0.25 and found.interval == pytest.approx(wilson_interval(1, 4))
    assert found.score == (1 + 0.5) / 4, "an episode that failed scores nothing"
    assert found.score_interval == mean_interval([1.0, 0.5, 0.0, 0.0])
    kinds = count_by_type([outcome("a", 1.0), outcome("b", 0.5), outcome("c", 0.25, "garden")])
    assert {kind: each.score for kind, each in kinds.items()} == {"fashion": 0.75, "garden": 0.25}


def test_an_evaluation_has_score_and_success_and_both_by_type() -> None:
    garden = Task("u", "Shop-v0", task_type="garden")
    rows = [
        drawn(Group(TASK, (bought(1.0), bought(0.5)))),
        drawn(Group(garden, (bought(0.2, task=garden), broken(garden)))),
        drawn(Group(TASK, (bought(1.0),)), draw=GREEDY),
        drawn(Group(garden, (bought(0.4, task=garden),)), draw=GREEDY),
    ]
    found = evaluate_samples(rows, label="x", config=EvalConfig(samples=2))
    assert found.accuracy == 0.25 and found.greedy == 0.5 and found.failed == 0.25
    assert found.score == pytest.approx((0.75 + 0.1) / 2) and found.greedy_score == pytest.approx(0.7)
    assert found.score_interval == mean_interval([0.75, 0.1])
    assert [result.score for result in found.results] == [0.75, 0.1]
    assert found.by_type["garden"].score == 0.1 and found.by_type["garden"].accuracy == 0


def test_the_best_of_purchases_that_are_all_wrong_in_part_has_not_won() -> None:
    partly = Group(TASK, (bought(0.67, reward=0.67), bought(0.1, reward=0.1)))
    assert winning(partly) == [False, False]
    assert winning(Group(TASK, (bought(0.67, reward=0.67), bought(1.0, reward=1.0)))) == [False, True]
    assert winning(Group(TASK, (bought(1.0, pays=10, reward=10.0), bought(0.0, reward=0.0)))) == [True, False]


def test_a_reward_of_another_kind_never_sees_what_the_environment_says() -> None:
    voted = Group(TASK, (bought(0.67, reward=1.0), bought(1.0, reward=0.0), bought(0.0, reward=1.0)))
    assert winning(voted) == [True, False, True]
    silent = Group(TASK, (Trajectory(TASK, (Step("o", "a", 0.5, True, False),), None, "terminated", reward=0.5),))
    assert winning(silent) == [True], "an environment that says nothing of winning: the best won, as ever"


def test_who_seeks_a_way_around_the_task_is_counted() -> None:
    tried = [ended(1.0, exploits=3), ended(0.0, exploits=0), ended(0.0, exploits=1), ended(0.0)]
    assert count_success([episode_result(each) for each in tried]).exploits == 2
    rows = [drawn(Group(TASK, tuple(tried[:3])))]
    config = EvalConfig(samples=3, greedy=False)
    assert evaluate_samples(rows, label="x", config=config).exploit_rate == pytest.approx(2 / 3)
    silent = [drawn(Group(TASK, (ended(1.0), ended(0.0), ended(0.0))))]
    assert evaluate_samples(silent, label="x", config=config).exploit_rate is None
