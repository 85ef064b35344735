"""GRPO: advantages within a group of rollouts of one task (arXiv 2402.03300)."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, ClassVar

from pydantic import Field
from torch import Tensor

from skill_ttrl.config import Section
from skill_ttrl.rl.advantages import GroupLevel, group_advantages
from skill_ttrl.rl.algorithms.contract import ALGORITHMS, AdvantageEstimate, Requirement, TrainingSamples
from skill_ttrl.rl.algorithms.relative import relative_advantages


class GRPOOptions(Section):
    """Options of GRPO."""

    epsilon: float = Field(default=1e-6, gt=0)
    """Added to the group's standard deviation (verl: 1e-6)."""
    level: GroupLevel = "episode"
    """What mean and deviation of a group of episodes are taken over. `episode`: each episode weighs the same, however long it
    is. `step`: each step does, so that long ones weigh more (verl-agent, SkillRL)."""


@ALGORITHMS.register("grpo")
class GRPO:
    """See the module."""

    options_type: ClassVar[type[Section]] = GRPOOptions
    defaults: ClassVar[Mapping[str, Any]] = {}
    requires: ClassVar[frozenset[Requirement]] = frozenset()

    def __init__(self, options: GRPOOptions) -> None:
        self.options = options

    def advantages(self, samples: TrainingSamples) -> AdvantageEstimate:
        """One for each step where steps of an episode differ, else one for each trajectory, shaped by its vote."""
        return AdvantageEstimate(relative_advantages(samples, self.estimate, self.options.level))

    def estimate(
        self,
        rewards: Sequence[float] | Tensor,
        groups: Sequence[Hashable] | Tensor,
        episodes: Sequence[Hashable] | None = None,
    ) -> Tensor:
        """Estimate advantages (N,) from rewards (N,) of these groups (N,)."""
        return group_advantages(rewards, groups, self.options.epsilon, episodes)
