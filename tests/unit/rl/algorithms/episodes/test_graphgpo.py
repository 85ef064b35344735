"""GraphGPO by hand, and its distances against Bellman and Ford's."""

from __future__ import annotations

import math
import random
import statistics
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skill_ttrl.rl.algorithms import AdvantageEstimate, TrainingSamples, build_algorithm
from skill_ttrl.rl.algorithms.episodes import SUCCESS, Edge, distances_to_success, edge_returns
from skill_ttrl.types import Group
from tests.unit.rl.episodes import episode, random_groups


def estimate(groups: list[Group], **options: Any) -> AdvantageEstimate:
    found = build_algorithm({"type": "graphgpo", **options}).advantages(TrainingSamples(groups))
    assert isinstance(found, AdvantageEstimate)
    return found


def advantages(groups: list[Group], **options: Any) -> Any:
    """A row for each episode."""
    return estimate(groups, **options).advantages


def test_distances_and_returns_by_hand() -> None:
    # a -> b -> success, a -> c -> a, d -> d: c reaches success through a, d never does.
    edges = [Edge("a", "b"), Edge("b", SUCCESS), Edge("a", "c"), Edge("c", "a"), Edge("d", "d")]
    assert distances_to_success(edges) == {SUCCESS: 0, "b": 1, "a": 2, "c": 3, "d": 4}
    assert edge_returns(edges) == pytest.approx([1.0, 10.0, 0.01, 0.1, 0.001])
    assert distances_to_success([Edge("a", "b")]) == {} and edge_returns([Edge("a", "b")]) == [0.0]


@given(st.integers(0, 10_000))
def test_distances_are_those_of_repeated_relaxation(seed: int) -> None:
    draw = random.Random(seed)
    nodes = [*range(draw.randint(1, 8)), SUCCESS]
    edges = [Edge(draw.choice(nodes[:-1]), draw.choice(nodes)) for _ in range(draw.randint(1, 20))]
    expected = {node: math.inf for edge in edges for node in edge} | {SUCCESS: 0.0}
    for _ in expected:
        for edge in edges:
            expected[edge.state] = min(expected[edge.state], 1 + expected[edge.next_state])
    if not any(edge.next_state == SUCCESS for edge in edges):
        assert distances_to_success(edges) == {}
        return
    largest = max(value for value in expected.values() if value < math.inf)
    assert distances_to_success(edges) == {
        node: largest + 1 if value == math.inf else value for node, value in expected.items()
    }


def test_the_best_reward_is_a_success() -> None:
    best, partial, nothing = episode("aw", 0.8), episode("ab", 0.3), episode("ac", 0.0)
    groups = [Group(best.task, (best, partial, nothing))]
    rows = advantages(groups, episode_weight=0.0)
    assert rows[0][0] > 0 > rows[1][0] == rows[2][0]


def brute_force(group: Group) -> list[list[float]]:
    """Each graph part by its definition: shortest continuation over all walks of the group, then the z-score."""
    rewards = [each.reward or 0.0 for each in group.trajectories]
    edges = []
    for each, reward in zip(group.trajectories, rewards, strict=True):
        path = [each.start_state, *(str(step.info["state"]) for step in each.steps)]
        edges.append(
            [(path[t], SUCCESS if reward and t == len(path) - 2 else path[t + 1]) for t in range(len(path) - 1)]
        )
    every = [edge for row in edges for edge in row]

    def distance(node: str, passed: frozenset[str] = frozenset()) -> float:
        if node == SUCCESS:
            return 0.0
        if node in passed:
            return math.inf
        return min((1 + distance(b, passed | {node}) for a, b in every if a == node), default=math.inf)

    found = {node: distance(node) for edge in every for node in edge}
    if not any(rewards):
        return [[0.0] * len(row) for row in edges]
    unreached = max(value for value in found.values() if value < math.inf) + 1
    value = {node: 10 * 0.1 ** min(each, unreached) for node, each in found.items()}
    rows = []
    for row in edges:
        out = []
        for state, to in row:
            alike = [value[b] for a, b in every if a == state]
            spread = statistics.stdev(alike) if len(alike) > 1 else 0.0
            out.append((value[to] - statistics.mean(alike)) / (spread + 1e-6) if spread > 0 else 0.0)
        rows.append(out)
    return rows


@given(st.integers(0, 10_000))
def test_the_graph_part_is_its_definition(seed: int) -> None:
    groups = random_groups(seed, groups=2, size=4, states=4, longest=5)
    found = iter(advantages(groups, episode_weight=0.0))
    for group in groups:
        for expected in brute_force(group):
            assert next(found) == pytest.approx(expected, abs=1e-4)
