"""GraphGPO: how far each step of a task's rollouts led towards success, in the graph of all of them (arXiv 2605.26684)."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, ClassVar

from pydantic import Field
from torch import Tensor

from skill_ttrl.config import Section
from skill_ttrl.rl.advantages import (
    SUCCESS,
    Edge,
    GroupLevel,
    edge_returns,
    group_advantages,
    state_advantages,
    state_metrics,
)
from skill_ttrl.rl.algorithms.contract import ALGORITHMS, AdvantageEstimate, Requirement, TrainingSamples
from skill_ttrl.rl.algorithms.group_relative.relative import add_step_advantages, relative_advantages
from skill_ttrl.types import equal_rewards


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
class GraphGPO:
    """See the module."""

    options_type: ClassVar[type[Section]] = GraphGPOOptions
    defaults: ClassVar[Mapping[str, Any]] = {}
    requires: ClassVar[frozenset[Requirement]] = frozenset({"episodes", "states"})

    def __init__(self, options: GraphGPOOptions) -> None:
        self.options = options

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

    def estimate(
        self,
        rewards: Sequence[float] | Tensor,
        groups: Sequence[Hashable] | Tensor,
        episodes: Sequence[Hashable] | None = None,
    ) -> Tensor:
        """Estimate the episode's part of the advantages (N,) from rewards (N,) of these groups (N,)."""
        return group_advantages(rewards, groups, self.options.epsilon, episodes)
