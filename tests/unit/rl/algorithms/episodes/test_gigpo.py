"""GiGPO against a direct reading of its equations."""

from __future__ import annotations

import statistics
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skill_ttrl.rl.algorithms import TrainingSamples, build_algorithm
from skill_ttrl.types import Group
from tests.unit.rl.episodes import episode, random_groups


def advantages(groups: list[Group], penalty: float = 0.0, *, env: bool = False, **options: Any) -> list[list[float]]:
    samples = TrainingSamples(groups, None, penalty, env_rewards=env)
    found = build_algorithm({"type": "gigpo", **options}).advantages(samples)
    return found.advantages  # type: ignore[union-attr, return-value]


def test_the_environments_own_rewards_count_only_where_they_are_learned_from() -> None:
    group = Group(episode("ab", 1.0).task, (episode("aab", 3.0, rewards=[1.0, 2.0]), episode("ab", 0.0)))
    # Values of the three steps from a: 1 + .95 * 2, 2, 0 with the environment's rewards, .95 * 3, 3, 0 without.
    for env, values in ((True, [2.9, 2.0, 0.0]), (False, [2.85, 3.0, 0.0])):
        rows = advantages([group], env=env)
        mean = sum(values) / 3
        assert [value for row in rows for value in row] == pytest.approx(
            [value - mean + whole for value, whole in zip(values, (1.0, 1.0, -2.0), strict=True)]
        )


def brute_force(groups: list[Group], penalty: float, std: bool) -> list[list[float]]:
    """Equations 3 to 8, step by step, with verl-agent's statistics over steps."""
    rows: list[list[float]] = []
    for group in groups:
        steps = [(i, t) for i, each in enumerate(group.trajectories) for t in range(len(each.steps))]
        anchor = {(i, t): group.trajectories[i].steps[t].observation for i, t in steps}
        bad = {(i, t): penalty * (group.trajectories[i].steps[t].action_status == "invalid") for i, t in steps}
        reward = {i: each.reward or 0.0 for i, each in enumerate(group.trajectories)}
        last = {i: len(each.steps) - 1 for i, each in enumerate(group.trajectories)}
        score = {(i, t): reward[i] - bad[i, t] for i, t in steps}
        value = {(i, t): 0.95 ** (last[i] - t) * reward[i] - bad[i, t] for i, t in steps}
        for i, each in enumerate(group.trajectories):
            row = []
            for t in range(len(each.steps)):
                alike = [value[other] for other in steps if anchor[other] == anchor[i, t]]
                parts = [(score[i, t], list(score.values())), (value[i, t], alike)]
                total = 0.0
                for own, all_of_them in parts:
                    if len(all_of_them) > 1:
                        scale = statistics.stdev(all_of_them) + 1e-6 if std else 1.0
                        total += (own - statistics.mean(all_of_them)) / scale
                row.append(total)
            rows.append(row)
    return rows


@given(st.integers(0, 10_000), st.booleans(), st.sampled_from([0.0, 0.1]))
def test_a_direct_reading_of_the_equations_gives_the_same(seed: int, std: bool, penalty: float) -> None:
    groups = random_groups(seed)
    found = advantages(groups, penalty, mode="mean_std_norm" if std else "mean_norm")
    for row, expected in zip(found, brute_force(groups, penalty, std), strict=True):
        assert row == pytest.approx(expected, abs=1e-4)
