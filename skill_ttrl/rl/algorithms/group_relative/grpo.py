"""GRPO and its variants: advantages within a group of rollouts of one task (arXiv 2402.03300)."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar

from pydantic import Field
from torch import Tensor

from skill_ttrl.config import Section
from skill_ttrl.errors import ConfigError
from skill_ttrl.rl.advantages import RewardScale, group_advantages
from skill_ttrl.rl.algorithms.contract import ALGORITHMS, AdvantageEstimate, TrainingSamples
from skill_ttrl.rl.algorithms.group_relative.relative import GroupRelative, LevelOptions


class GRPOOptions(LevelOptions):
    """Options of GRPO."""

    scale_rewards: RewardScale = "group"
    """Divisor of a group's centred rewards. `group`: the group's standard deviation. `batch`: that of the batch. `none`: nothing
    (verl: `norm_adv_by_std_in_grpo: false`). `mean`: the group's mean (MaxRL)."""
    epsilon: float = Field(default=1e-6, gt=0)
    """Added to the divisor (verl: 1e-6, TRL: 1e-4)."""


@ALGORITHMS.register("grpo")
class GRPO(GroupRelative):
    """Reward minus its group's mean, over the group's standard deviation."""

    options_type: ClassVar[type[Section]] = GRPOOptions
    options: GRPOOptions

    @property
    def takes_shaped_votes(self) -> bool:
        """False where the deviation is the batch's."""
        return self.options.scale_rewards != "batch"

    def advantages(self, samples: TrainingSamples) -> AdvantageEstimate:
        """See `GroupRelative`.

        Raises:
            ConfigError: rewards below 0, and advantages over their mean.
        """
        lowest = min((reward for row in samples.step_rewards for reward in row), default=0.0)
        if self.options.scale_rewards == "mean" and lowest < 0:
            raise ConfigError(
                f"Advantages over the group's mean (MaxRL) need rewards of at least 0, and one is {lowest:g}. Use "
                "rl.algorithm.scale_rewards=group, or a reward that is never negative."
            )
        return super().advantages(samples)

    def estimate(
        self,
        rewards: Sequence[float] | Tensor,
        groups: Sequence[Hashable] | Tensor,
        episodes: Sequence[Hashable] | None = None,
    ) -> Tensor:
        """Estimate advantages (N,) from rewards (N,) of these groups (N,)."""
        return group_advantages(rewards, groups, self.options.epsilon, episodes, self.options.scale_rewards)


class DrGRPOOptions(GRPOOptions):
    """Options of Dr. GRPO."""

    scale_rewards: RewardScale = "none"
    """Divisor of a group's centred rewards, see `grpo`."""


@ALGORITHMS.register("dr_grpo")
class DrGRPO(GRPO):
    """Dr. GRPO (arXiv 2503.20783): no deviation, token losses summed over a constant length, no KL term."""

    options_type: ClassVar[type[Section]] = DrGRPOOptions
    defaults: ClassVar[Mapping[str, Any]] = MappingProxyType(
        {"loss_aggregation": "seq-mean-token-sum-norm", "kl_coef": 0.0}
    )


class MaxRLOptions(GRPOOptions):
    """Options of MaxRL."""

    scale_rewards: RewardScale = "mean"
    """Divisor of a group's centred rewards, see `grpo`."""


@ALGORITHMS.register("maxrl")
class MaxRL(GRPO):
    """MaxRL (arXiv 2602.02710): over the group's mean, so that the likelihood of a success is maximised, not its chance."""

    options_type: ClassVar[type[Section]] = MaxRLOptions
