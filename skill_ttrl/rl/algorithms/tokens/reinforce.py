"""REINFORCE with returns from each token on: REINFORCE++, its baseline form, and ReMax."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from skill_ttrl.config import Section
from skill_ttrl.errors import ConfigError
from skill_ttrl.rl.advantages import (
    GroupLevel,
    compute_remax_advantage,
    group_advantages,
    returns_to_go,
)
from skill_ttrl.rl.algorithms.contract import ALGORITHMS, AdvantageEstimate, Requirement, TrainingSamples
from skill_ttrl.rl.algorithms.group_relative.relative import GroupRelative, LevelOptions
from skill_ttrl.rl.algorithms.tokens.rows import TokenRows
from skill_ttrl.rl.batch import RolloutBatch

WHITENED: Mapping[str, Any] = MappingProxyType({"whiten_advantages": True})
"""Defaults of algorithms whose advantages are whitened (verl does it in the estimator)."""


class TokenOptions(Section):
    """Options of algorithms that go from token to token."""

    level: GroupLevel = "episode"
    """Span of the returns where rollouts have several steps. `episode`: over all tokens of the episode, whose outcome is earned
    once, at its end. `step`: over the tokens of one step, which ends with the outcome (verl-agent: each step is a row)."""


class ReinforcePlusPlusOptions(TokenOptions):
    """Options of REINFORCE++."""

    gamma: float = Field(default=1.0, ge=0, le=1)
    """Discount from a token to the next."""
    step_gamma: float | None = Field(default=None, ge=0, le=1)
    """Discount from a step's last token to the next step's first, with level `episode`; None: `gamma`."""


@ALGORITHMS.register("reinforce_plus_plus")
class ReinforcePlusPlus:
    """Returns of the tokens, the KL penalty in the rewards, whitened over the batch (arXiv 2501.03262)."""

    options_type: ClassVar[type[Section]] = ReinforcePlusPlusOptions
    defaults: ClassVar[Mapping[str, Any]] = WHITENED
    requires: ClassVar[frozenset[Requirement]] = frozenset()
    takes_shaped_votes = False

    def __init__(self, options: ReinforcePlusPlusOptions) -> None:
        self.options = options

    def advantages(self, samples: TrainingSamples) -> AdvantageEstimate:
        """One for each token."""
        batch, level = tokens_of(samples), self.options.level
        rows = TokenRows.of(batch, level)
        rewards = rows.rewards(batch, samples.rewards, level)
        gamma = rows.per_token(self.options.gamma, self.options.step_gamma)
        return AdvantageEstimate(rows.flat(returns_to_go(rewards, rows.mask_N_T, gamma), len(batch.tokens_F)))


@ALGORITHMS.register("reinforce_plus_plus_baseline")
class ReinforcePlusPlusBaseline(GroupRelative):
    """Reward minus its group's mean; whitened over the tokens of the batch (arXiv 2501.03262)."""

    options_type: ClassVar[type[Section]] = LevelOptions
    defaults: ClassVar[Mapping[str, Any]] = WHITENED

    def estimate(
        self,
        rewards: Sequence[float] | Tensor,
        groups: Sequence[Hashable] | Tensor,
        episodes: Sequence[Hashable] | None = None,
    ) -> Tensor:
        """Centre rewards (N,) in these groups (N,)."""
        return group_advantages(rewards, groups, episodes=episodes, scale="none")


@ALGORITHMS.register("remax")
class ReMax:
    """Returns of the tokens minus the reward of the task's greedy rollout (arXiv 2310.10505)."""

    options_type: ClassVar[type[Section]] = TokenOptions
    defaults: ClassVar[Mapping[str, Any]] = {}
    requires: ClassVar[frozenset[Requirement]] = frozenset({"greedy"})
    takes_shaped_votes = False

    def __init__(self, options: TokenOptions) -> None:
        self.options = options

    def advantages(self, samples: TrainingSamples) -> AdvantageEstimate:
        """One for each token.

        Raises:
            ConfigError: the samples have no tokens.
            ValueError: not one greedy reward a group.
        """
        batch, level, greedy = tokens_of(samples), self.options.level, samples.greedy_rewards
        if greedy is None or len(greedy) != len(samples.groups):
            raise ValueError(f"ReMax needs the reward of a greedy rollout of each of {len(samples.groups)} tasks.")
        rows = TokenRows.of(batch, level)
        owners = torch.tensor(samples.owners, dtype=torch.long)
        baselines = torch.tensor(greedy)[owners[rows.trajectory_N]]  # float32, as the rewards of the batch
        found, _ = compute_remax_advantage(rows.rewards(batch, samples.rewards, level), baselines, rows.mask_N_T)
        return AdvantageEstimate(rows.flat(found, len(batch.tokens_F)))


def tokens_of(samples: TrainingSamples) -> RolloutBatch:
    """The samples as tokens.

    Raises:
        ConfigError: they have none: texts that were not sampled here.
    """
    if samples.batch is None:
        raise ConfigError(
            "This rl.algorithm goes from token to token, and these are texts without tokens. Use grpo, rloo or another that compares "
            "whole responses."
        )
    return samples.batch
