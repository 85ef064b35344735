"""Advantages where an episode has many steps: each episode weighs the same, or each step; and the penalty of invalid steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from statistics import stdev
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skill_ttrl.rl.algorithms import group_advantages
from skill_ttrl.rl.algorithms.grpo import GroupLevel, step_advantages
from skill_ttrl.rl.batch import pack, with_advantages
from skill_ttrl.types import Group
from tests.sampled import per_item

EPSILON = 1e-6

rewards = st.sampled_from([0.0, 0.25, 1.0, 10.0])
episode = st.tuples(rewards, st.lists(st.booleans(), min_size=1, max_size=9), st.integers(0, 2))
"""Outcome, whether each step was invalid, group."""
episodes = st.lists(episode, min_size=1, max_size=12)
statistics = st.sampled_from(["episode", "step"])
few = settings(max_examples=20)


def advantages(
    found: Sequence[tuple[float, Sequence[bool], int]],
    penalty: float,
    statistics: GroupLevel = "episode",
    *,
    shift: float = 0.0,
    estimate: Any = group_advantages,
) -> list[list[float]]:
    outcomes = [reward + shift for reward, _, _ in found]
    rows = [
        [outcome - penalty * invalid for invalid in steps]
        for outcome, (_, steps, _) in zip(outcomes, found, strict=True)
    ]
    return step_advantages(outcomes, rows, [group for _, _, group in found], estimate, statistics)


def test_statistics_over_steps_are_verl_agents() -> None:
    # A win of 10 in 2 steps and a loss in 3, one of them invalid at 0.1. verl-agent's rows: 10 10 0 -0.1 0; their mean is
    # 19.9/5 and their unbiased variance (2 (10 - 3.98)^2 + 2 (0 - 3.98)^2 + (-0.1 - 3.98)^2) / 4.
    found = [(10.0, [False, False], 0), (0.0, [False, True, False], 0)]
    mean, rows = Fraction(199, 50), [Fraction(score, 10) for score in (100, 100, 0, -1, 0)]
    deviation = math.sqrt(sum((row - mean) ** 2 for row in rows) / 4)
    assert deviation == pytest.approx(stdev(map(float, rows)), rel=1e-12) == pytest.approx(5.4956, abs=1e-4)
    expected = [float(row - mean) / (deviation + EPSILON) for row in rows]
    assert expected == pytest.approx([1.09543, 1.09543, -0.72422, -0.74241, -0.72422], abs=1e-4)
    won, lost = advantages(found, 0.1, "step")
    assert [*won, *lost] == pytest.approx(expected, abs=1e-6)


def test_a_penalty_with_each_episode_weighing_the_same_by_hand() -> None:
    # Scores 1 1 | 0 -0.5 0 0. Means of the episodes: 1 and -1/8, so their mean is 7/16. Variance with Bessel's 2 - 1:
    # (9/16)^2 + ((7/16)^2 x 3 + (15/16)^2) / 4 = (81 + (147 + 225) / 4) / 256 = 174/256.
    won, lost = advantages([(1.0, [False] * 2, 0), (0.0, [False, True, False, False], 0)], 0.5)
    deviation = math.sqrt(174 / 256) + EPSILON
    assert won == pytest.approx([9 / 16 / deviation] * 2, abs=1e-6)
    assert lost == pytest.approx([-7 / 16 / deviation, -15 / 16 / deviation, *[-7 / 16 / deviation] * 2], abs=1e-6)


@few
@given(episodes)
def test_without_a_penalty_every_step_carries_grpo_over_episodes(found: list[tuple[float, list[bool], int]]) -> None:
    plain = group_advantages([reward for reward, _, _ in found], [group for _, _, group in found], EPSILON).tolist()
    assert advantages(found, 0.0) == [[value] * len(steps) for value, (_, steps, _) in zip(plain, found, strict=True)]
    # The general formula comes to the same, where it is asked for without need.
    owners = [number for number, (_, steps, _) in enumerate(found) for _ in steps]
    asked = group_advantages([found[i][0] for i in owners], [found[i][2] for i in owners], EPSILON, owners)
    assert asked.tolist() == pytest.approx([plain[i] for i in owners], abs=1e-5)


@few
@given(episodes, st.floats(0, 5), statistics)
def test_an_invalid_step_is_never_better_than_a_valid_one_of_its_episode(
    found: list[tuple[float, list[bool], int]], penalty: float, statistics: GroupLevel
) -> None:
    for (_, steps, _), row in zip(found, advantages(found, penalty, statistics), strict=True):
        assert len(row) == len(steps) and all(map(math.isfinite, row))
        valid = [value for value, invalid in zip(row, steps, strict=True) if not invalid]
        invalid = [value for value, invalid in zip(row, steps, strict=True) if invalid]
        assert len({*valid}) <= 1 and len({*invalid}) <= 1
        assert not valid or not invalid or invalid[0] <= valid[0]


@few
@given(episodes, st.floats(0.01, 5), st.integers(-20, 20), statistics)
def test_a_reward_for_everybody_changes_nothing_where_there_is_something_to_compare(
    found: list[tuple[float, list[bool], int]], penalty: float, shift: int, statistics: GroupLevel
) -> None:
    before, after = (advantages(found, penalty, statistics, shift=each) for each in (0.0, float(shift)))
    sizes = [
        sum(1 if statistics == "episode" else len(steps) for _, steps, g in found if g == group) for group in range(3)
    ]
    for (_, _, group), left, right in zip(found, before, after, strict=True):
        if sizes[group] > 1:
            assert left == pytest.approx(right, abs=1e-3)


@few
@given(episodes, st.floats(0.001, 5))
def test_each_episode_weighs_the_same_in_a_group_whose_mean_is_nothing_and_whose_variance_is_one(
    found: list[tuple[float, list[bool], int]], penalty: float
) -> None:
    rows = advantages(found, penalty)
    for group in {group for _, _, group in found}:
        members = [row for row, (_, _, owner) in zip(rows, found, strict=True) if owner == group]
        count = len(members)
        if count == 1:
            continue
        assert sum(sum(row) / len(row) for row in members) == pytest.approx(0, abs=1e-4 * count)
        assert all(abs(value) <= math.sqrt(len(row) * (count - 1)) + 1e-4 for row in members for value in row)
        variance = sum(sum(value**2 for value in row) / len(row) for row in members) / (count - 1)
        assert variance == pytest.approx(0 if all(not any(row) for row in members) else 1, abs=1e-2)


def test_each_step_is_packed_with_its_own_advantage(make_groups: Callable[..., list[Group]]) -> None:
    (group,) = make_groups(prompts=1, tries=2, turns=2)
    batch = with_advantages(pack([group]), [group], [[0.5, -0.25], [0.125, 1.0]])
    assert per_item(batch) == [0.5, -0.25, 0.125, 1.0]
    silent = replace(group.trajectories[0].steps[0], completion=None)
    mixed = replace(group.trajectories[0], steps=(silent, *group.trajectories[0].steps[1:]))
    mixed_groups = [replace(group, trajectories=(mixed,))]
    assert per_item(with_advantages(pack(mixed_groups), mixed_groups, [[0.5, -0.25]])) == [-0.25]
    with pytest.raises(ValueError, match="one advantage for each of 2 steps, found 1"):
        with_advantages(pack([group]), [group], [[0.5], [0.125, 1.0]])
