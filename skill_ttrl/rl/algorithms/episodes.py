"""Steps against steps from the same state: GiGPO (arXiv 2505.10978) and GraphGPO (arXiv 2605.26684)."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Hashable, Iterable, Sequence
from difflib import SequenceMatcher
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from skill_ttrl.config import Section
from skill_ttrl.rl.algorithms.contract import (
    ALGORITHMS,
    AdvantageEstimate,
    BuiltIn,
    Groups,
    Requirement,
    Rewards,
    TrainingSamples,
)
from skill_ttrl.rl.algorithms.grpo import (
    GroupLevel,
    RewardScale,
    add_step_advantages,
    group_advantages,
    read_groups,
    relative_advantages,
)
from skill_ttrl.types import equal_rewards


def state_advantages(
    values: Sequence[float], states: Sequence[Hashable], *, std: bool = True, epsilon: float = 1e-6
) -> Float[Tensor, " N"]:
    """Compare the value of each step with those of all steps from its state.

    Args:
        values: What each of N steps is worth, e.g. its discounted return.
        states: State that each step was taken from, with its group.
        std: Divide by the unbiased standard deviation (n - 1) of the state's values.
        epsilon: Added to the standard deviation.

    Returns:
        Value minus the mean over the state's steps (N,), float32; exactly 0 where a state has one step, or equal values.
    """
    values_N, members = read_groups(values, states)
    advantages_N = torch.zeros_like(values_N)
    for rows in members:
        values_G = values_N[rows]
        if not equal_rewards(values_G.tolist()):
            scale = values_G.std() + epsilon if std else 1.0
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
    rows = []
    for episode in rewards:
        row: list[float] = []
        for reward in reversed(episode):
            row.append(reward + gamma * (row[-1] if row else 0.0))
        rows.append(row[::-1])
    return rows


def anchor_groups(
    anchors: Sequence[Sequence[str]], groups: Sequence[Hashable], similarity: float | None = None
) -> list[list[Hashable]]:
    """Name the step group of each step: steps of one group's episodes whose anchors are equal, or alike (equation 6).

    Args:
        anchors: What each step of each episode (E) was taken from: an observation, or a state.
        groups: Group of each episode (E).
        similarity: From which ratio (`difflib.SequenceMatcher`) on two texts are alike; a text joins the first step group whose
            first text it is like. None: only equal texts are.

    Returns:
        An id for each step of each episode.
    """
    first: dict[Hashable, list[str]] = {}
    rows: list[list[Hashable]] = []
    for episode, group in zip(anchors, groups, strict=True):
        known = first.setdefault(group, [])
        rows.append(
            [(group, anchor if similarity is None else _alike(anchor, known, similarity)) for anchor in episode]
        )
    return rows


def _alike(text: str, known: list[str], similarity: float) -> str:
    """The first of the known texts that this one is like; itself, which is known from then on, where there is none."""
    for other in known:
        if text == other:
            return other
        matcher = SequenceMatcher(None, text, other)
        # The two quick ratios are upper bounds, and spare most pairs the quadratic one.
        bounds = (matcher.real_quick_ratio, matcher.quick_ratio, matcher.ratio)
        if all(bound() >= similarity for bound in bounds):
            return other
    known.append(text)
    return text


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
    anchor: Literal["observation", "state"] = "observation"
    """Key that steps are grouped by: the text that was seen before the step (the paper), or the exact state, which the environment has to
    name (`info["state"]`)."""
    similarity: float | None = Field(default=None, gt=0, lt=1)
    """From which ratio (`difflib.SequenceMatcher`) on two observations are one anchor (verl-agent: 0.95); None: only equal ones are."""
    level: GroupLevel = "step"
    """Level over which the mean of A_episode is taken; see the algorithm `grpo`. verl-agent: `step`."""
    epsilon: float = Field(default=1e-6, gt=0)
    """Added to standard deviations."""


@ALGORITHMS.register("gigpo")
class GiGPO(BuiltIn):
    """See the module."""

    options_type = GiGPOOptions
    requires = frozenset({"episodes"})

    def __init__(self, options: GiGPOOptions) -> None:
        super().__init__(options)
        self.also_requires: frozenset[Requirement] = frozenset({"states"} if options.anchor == "state" else ())
        """Requirements of these options, in addition to those of the class."""

    def advantages(self, samples: TrainingSamples) -> AdvantageEstimate:
        """One for each step. `rl.invalid_action_penalty_coef` is taken off a step's return too, undiscounted, as in verl-agent."""
        options = self.options
        if options.anchor == "state":
            anchors: Sequence[Sequence[str]] = [row[:-1] for row in samples.states]
        else:
            anchors = [[step.observation for step in each.steps] for each in samples.trajectories]
        rows = anchor_groups(anchors, samples.owners, options.similarity)
        returns = discounted_returns(samples.immediate_rewards, options.gamma)
        values = [
            value - samples.invalid_action_penalty_coef * (step.action_status == "invalid")
            for each, row in zip(samples.trajectories, returns, strict=True)
            for step, value in zip(each.steps, row, strict=True)
        ]
        groups = [group for row in rows for group in row]
        steps = state_advantages(values, groups, std=options.mode == "mean_std_norm", epsilon=options.epsilon)
        episodes = relative_advantages(samples, self.estimate, options.level)
        found = add_step_advantages(samples, episodes, (options.step_weight * steps).tolist())
        return AdvantageEstimate(found, metrics=state_metrics(groups))

    def estimate(self, rewards: Rewards, groups: Groups, episodes: Sequence[Hashable] | None = None) -> Tensor:
        """Estimate the episode's part of the advantages (N,) from rewards (N,) of these groups (N,)."""
        scale: RewardScale = "none" if self.options.mode == "mean_norm" else "group"
        return group_advantages(rewards, groups, self.options.epsilon, episodes, scale)


class GraphGPOOptions(Section):
    """Options of GraphGPO. Defaults: the authors' code."""

    graph_weight: float = Field(default=1.0, ge=0)
    """beta_G of A = beta_G A_graph + beta_E A_episode."""
    episode_weight: float = Field(default=1.0, ge=0)
    """beta_E of the same."""
    success_return: float = Field(default=10.0, gt=0)
    """r of an edge's return r omega^d, d the distance to success of the state that it leads to."""
    omega: float = Field(default=0.1, gt=0, lt=1)
    """Factor of an edge's return for each step that is left to success."""
    success_reward: float | None = None
    """Reward from which on a rollout counts as a success; None: the highest reward of its group, where that is above 0."""
    level: GroupLevel = "step"
    """Level over which mean and deviation of A_episode are taken; see the algorithm `grpo`. The authors' code: `step`."""
    epsilon: float = Field(default=1e-6, gt=0)
    """Added to standard deviations."""


@ALGORITHMS.register("graphgpo")
class GraphGPO(BuiltIn):
    """See the module."""

    options_type = GraphGPOOptions
    requires = frozenset({"episodes", "states"})

    def advantages(self, samples: TrainingSamples) -> AdvantageEstimate:
        """One for each step. Where no rollout of a group succeeded, its graph says nothing, and A_graph is 0."""
        options = self.options
        rows = iter(samples.states)
        values: list[float] = []
        sources: list[Hashable] = []
        reached = 0
        for place, group in enumerate(samples.groups):
            rewards = [each.reward or 0.0 for each in group.trajectories]
            least = options.success_reward if options.success_reward is not None else max(rewards, default=0.0)
            edges = []
            for reward in rewards:
                states = next(rows)
                ends = [
                    *states[1:-1],
                    SUCCESS if reward > 0 and (reward >= least or equal_rewards((reward, least))) else states[-1],
                ]
                edges += [Edge(*pair) for pair in zip(states[:-1], ends[: len(states) - 1], strict=True)]
            reached += any(edge.next_state == SUCCESS for edge in edges)
            values += edge_returns(edges, options.success_return, options.omega)
            sources += [(place, edge.state) for edge in edges]
        steps = options.graph_weight * state_advantages(values, sources, epsilon=options.epsilon)
        episodes = relative_advantages(samples, self.estimate, options.level)
        found = add_step_advantages(samples, episodes, steps.tolist(), weight=options.episode_weight)
        metrics = state_metrics(sources) | {"groups_with_success": reached / max(1, len(samples.groups))}
        return AdvantageEstimate(found, metrics=metrics)

    def estimate(self, rewards: Rewards, groups: Groups, episodes: Sequence[Hashable] | None = None) -> Tensor:
        """Estimate the episode's part of the advantages (N,) from rewards (N,) of these groups (N,)."""
        return group_advantages(rewards, groups, self.options.epsilon, episodes)
