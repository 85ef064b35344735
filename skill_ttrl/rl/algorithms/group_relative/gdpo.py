"""GDPO: several rewards, each normalised within the group before they are added up (arXiv 2601.05242)."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar

from pydantic import Field

from skill_ttrl.config import Section
from skill_ttrl.errors import ConfigError
from skill_ttrl.rl.advantages import decoupled_advantages
from skill_ttrl.rl.algorithms.contract import ALGORITHMS, AdvantageEstimate, Requirement, TrainingSamples


class GDPOOptions(Section):
    """Options of GDPO."""

    epsilon: float = Field(default=1e-6, gt=0)
    """Added to each reward's standard deviation (verl: 1e-6, TRL: 1e-4)."""


@ALGORITHMS.register("gdpo")
class GDPO:
    """The weighted sum of each reward's group-relative advantage, whitened over the tokens of the batch."""

    options_type: ClassVar[type[Section]] = GDPOOptions
    defaults: ClassVar[Mapping[str, Any]] = MappingProxyType({"whiten_advantages": True})
    requires: ClassVar[frozenset[Requirement]] = frozenset({"extra_rewards"})
    takes_shaped_votes = False

    def __init__(self, options: GDPOOptions) -> None:
        self.options = options

    def advantages(self, samples: TrainingSamples) -> AdvantageEstimate:
        """One for each trajectory.

        Raises:
            ConfigError: the trajectories do not carry the same several rewards.
        """
        rollouts = samples.trajectories
        names = list(rollouts[0].rewards) if rollouts else []
        if any(len(each.rewards) < 2 or list(each.rewards) != names for each in rollouts):
            raise ConfigError("GDPO needs the same two rewards or more of each rollout (rl.extra_rewards).")
        rows = [[each.rewards[name] for each in rollouts] for name in names]
        weights = [samples.reward_weights.get(name, 1.0) for name in names]
        if not rows:
            return AdvantageEstimate([])
        found = decoupled_advantages(rows, weights, samples.owners, self.options.epsilon)
        return AdvantageEstimate(found.tolist())
