"""GiGPO: the advantage of an episode, and of each step among the steps of its group from the same anchor (arXiv 2505.10978)."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, ClassVar, Literal

from pydantic import Field
from torch import Tensor

from skill_ttrl.config import Section
from skill_ttrl.rl.advantages import (
    GroupLevel,
    RewardScale,
    anchor_groups,
    discounted_returns,
    group_advantages,
    state_advantages,
    state_metrics,
)
from skill_ttrl.rl.algorithms.contract import ALGORITHMS, AdvantageEstimate, Requirement, TrainingSamples
from skill_ttrl.rl.algorithms.group_relative.relative import add_step_advantages, relative_advantages


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
class GiGPO:
    """See the module."""

    options_type: ClassVar[type[Section]] = GiGPOOptions
    defaults: ClassVar[Mapping[str, Any]] = {}
    requires: ClassVar[frozenset[Requirement]] = frozenset({"episodes"})

    def __init__(self, options: GiGPOOptions) -> None:
        self.options = options
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

    def estimate(
        self,
        rewards: Sequence[float] | Tensor,
        groups: Sequence[Hashable] | Tensor,
        episodes: Sequence[Hashable] | None = None,
    ) -> Tensor:
        """Estimate the episode's part of the advantages (N,) from rewards (N,) of these groups (N,)."""
        scale: RewardScale = "none" if self.options.mode == "mean_norm" else "group"
        return group_advantages(rewards, groups, self.options.epsilon, episodes, scale)
