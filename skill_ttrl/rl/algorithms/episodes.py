"""Steps against steps from the same state: GiGPO (arXiv 2505.10978) and GraphGPO (arXiv 2605.26684)."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Hashable, Iterable, Sequence
from functools import partial
from itertools import accumulate
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from skill_ttrl.config import Section
from skill_ttrl.rl.algorithms.grpo import (
    ALGORITHMS,
    EPSILON,
    AdvantageEstimate,
    BuiltIn,
    GroupLevel,
    RewardScale,
    TrainingSamples,
    add_step_advantages,
    group_advantages,
    read_groups,
    relative_advantages,
)
from skill_ttrl.types import equal_rewards


def state_advantages(values: Sequence[float], states: Sequence[Hashable], *, std: bool = True) -> Float[Tensor, " N"]:
    """Compare the value of each step with those of all steps from its state.

    Args:
        values: What each of N steps is worth, e.g. its discounted return.
        states: State that each step was taken from, with its group.
        std: Divide by the unbiased standard deviation (n - 1) of the state's values.

    Returns:
        Value minus the mean over the state's steps (N,), float32; exactly 0 where a state has one step, or equal values.
    """
    values_N, members = read_groups(values, states)
    advantages_N = torch.zeros_like(values_N)
    for rows in members:
        values_G = values_N[rows]
        if not equal_rewards(values_G.tolist()):
            scale = values_G.std() + EPSILON if std else 1.0
            advantages_N[rows] = (values_G - values_G.mean()) / scale
    return advantages_N.float()


def state_metrics(states: Sequence[Hashable]) -> dict[str, float]:
    """`step_group_size` (mean number of steps from a state) and `singleton_states` (share of states with a single step)."""
    sizes = Counter(states)
    if not sizes:
        return {}
    singles = sum(size == 1 for size in sizes.values())
    return {"step_group_size": len(states) / len(sizes), "singleton_states": singles / len(sizes)}


def discounted_returns(rewards: Sequence[Sequence[float]], gamma: float) -> list[list[float]]:
    """R_t = r_t + gamma R_{t+1} of each step of each episode (equation 5)."""
    backwards = (accumulate(reversed(episode), lambda later, reward: reward + gamma * later) for episode in rewards)
    return [[*row][::-1] for row in backwards]


SUCCESS = "success"
"""The node that the last step of a successful rollout leads to."""


class Edge(NamedTuple):
    """One step of a rollout."""

    state: Hashable
    next_state: Hashable
    """`SUCCESS` where the step ended a successful rollout."""


def distances_to_success(edges: Iterable[Edge]) -> dict[Hashable, float]:
    """Compute d(s) = min over edges (1 + d(s')), d(success) = 0, of all nodes: breadth first from success backwards.

    A node from which no rollout reached success has d_max + 1, d_max the largest distance of the others.

    Args:
        edges: Of one graph; each is one step.

    Returns:
        Distance of every node; empty where no rollout succeeded.
    """
    back: dict[Hashable, list[Hashable]] = defaultdict(list)
    for edge in edges:
        back[edge.next_state].append(edge.state)
    if SUCCESS not in back:
        return {}
    nodes = {*back, *(state for sources in back.values() for state in sources)}
    found: dict[Hashable, float] = {SUCCESS: 0.0}
    queue: deque[Hashable] = deque([SUCCESS])
    while queue:
        node = queue.popleft()
        for state in back.get(node, ()):
            if state not in found:
                found[state] = found[node] + 1
                queue.append(state)
    unreached = max(found.values()) + 1
    return {node: found.get(node, unreached) for node in nodes}


def edge_returns(edges: Iterable[Edge], success_return: float = 10.0, omega: float = 0.1) -> list[float]:
    """Compute the return of each edge: success_return * omega^d(s'); 0 for all where no rollout of the graph succeeded.

    The paper's exponent (equation 4) is d(s') + 1; the authors' code leaves the 1 out. That is one factor for all edges, which the z-score takes out again.
    """
    edges = list(edges)
    distances = distances_to_success(edges)
    return [success_return * omega ** distances[edge.next_state] if distances else 0.0 for edge in edges]


class GiGPOOptions(Section):
    """Options of GiGPO. Defaults: verl-agent."""

    step_weight: float = Field(default=1.0, ge=0)
    """w of A = A_episode + w A_step (equation 8)."""
    gamma: float = Field(default=0.95, ge=0, le=1)
    """Discount of the return of a step."""
    mode: Literal["mean_norm", "mean_std_norm"] = "mean_norm"
    """`mean_std_norm` divides both advantages by their standard deviations; `mean_norm` does not."""
    level: GroupLevel = "step"
    """Level over which the mean of A_episode is taken; see the algorithm `grpo`. verl-agent: `step`."""


@ALGORITHMS.register("gigpo")
class GiGPO(BuiltIn):
    """Compares episodes, and steps that were taken after the same observation (equations 6 and 8)."""

    options_type = GiGPOOptions
    requires = frozenset({"episodes"})

    def advantages(self, samples: TrainingSamples) -> AdvantageEstimate:
        """One for each step. `rl.invalid_action_penalty_coef` is taken off a step's return too, undiscounted, as in verl-agent."""
        options = self.options
        pairs = zip(samples.trajectories, samples.owners, strict=True)
        anchors: list[Hashable] = [(group, step.observation) for each, group in pairs for step in each.steps]
        returns = discounted_returns(samples.immediate_rewards, options.gamma)
        values = [
            value - samples.invalid_action_penalty_coef * (step.action_status == "invalid")
            for each, row in zip(samples.trajectories, returns, strict=True)
            for step, value in zip(each.steps, row, strict=True)
        ]
        steps = state_advantages(values, anchors, std=options.mode == "mean_std_norm")
        scale: RewardScale = "none" if options.mode == "mean_norm" else "group"
        episodes = relative_advantages(samples, partial(group_advantages, scale=scale), options.level)
        found = add_step_advantages(samples, episodes, (options.step_weight * steps).tolist())
        return AdvantageEstimate(found, metrics=state_metrics(anchors))


class GraphGPOOptions(Section):
    """Options of GraphGPO. Defaults: the authors' code."""

    episode_weight: float = Field(default=1.0, ge=0)
    """beta of A = A_graph + beta A_episode."""
    omega: float = Field(default=0.1, gt=0, lt=1)
    """Factor of an edge's return for each step that is left to success."""
    level: GroupLevel = "step"
    """Level over which mean and deviation of A_episode are taken; see the algorithm `grpo`. The authors' code: `step`."""


@ALGORITHMS.register("graphgpo")
class GraphGPO(BuiltIn):
    """Compares episodes, and steps from the same state by how near success they lead. The best rewards of a group are successes."""

    options_type = GraphGPOOptions
    requires = frozenset({"episodes", "states"})

    def advantages(self, samples: TrainingSamples) -> AdvantageEstimate:
        """Compute one advantage per step. A_graph is 0 in a group without a successful rollout."""
        options = self.options
        rows = iter(samples.states)
        values: list[float] = []
        sources: list[Hashable] = []
        reached = 0
        for place, group in enumerate(samples.groups):
            rewards = [each.reward or 0.0 for each in group.trajectories]
            best = max(rewards, default=0.0)
            edges = []
            for reward in rewards:
                states = next(rows)
                ends = [
                    *states[1:-1],
                    SUCCESS if reward > 0 and equal_rewards((reward, best)) else states[-1],
                ]
                edges += [Edge(*pair) for pair in zip(states[:-1], ends[: len(states) - 1], strict=True)]
            reached += any(edge.next_state == SUCCESS for edge in edges)
            values += edge_returns(edges, omega=options.omega)
            sources += [(place, edge.state) for edge in edges]
        steps = state_advantages(values, sources)
        episodes = relative_advantages(samples, group_advantages, options.level)
        found = add_step_advantages(samples, episodes, steps.tolist(), weight=options.episode_weight)
        metrics = state_metrics(sources) | {"groups_with_success": reached / max(1, len(samples.groups))}
        return AdvantageEstimate(found, metrics=metrics)
