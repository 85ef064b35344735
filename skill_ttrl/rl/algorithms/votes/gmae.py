"""GMAE: each sample's advantage is its mean over the groups that it could have been in (arXiv 2609.36750).

TTRL draws 64 samples to vote and trains on 32 of them: all that voted are the pool that contexts are drawn from. See
`rl.advantages.gmae` for the formulas and for what of them is the paper's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from skill_ttrl.config import Section
from skill_ttrl.rl.advantages import group_contexts, poisson_binomial_advantages
from skill_ttrl.rl.algorithms.contract import ALGORITHMS, AdvantageEstimate, Requirement, TrainingSamples
from skill_ttrl.rl.algorithms.votes.pool import VotePool, pools_of

REWARD = "gmae_reward"
"""Metric: mean probability of a sample to be rewarded."""


class GMAEOptions(Section):
    """Options of GMAE."""

    rewards: Literal["independent", "joint"] = "independent"
    """How the rewards of the samples of a group go together. `independent`: as the paper has it, each is 1 with its own probability,
    whatever the others earn. `joint`: those of one vote in one context, so the mean is of GRPO's advantages over all contexts."""


@ALGORITHMS.register("gmae")
class GMAE:
    """See the module."""

    options_type: ClassVar[type[Section]] = GMAEOptions
    defaults: ClassVar[Mapping[str, Any]] = {}
    requires: ClassVar[frozenset[Requirement]] = frozenset({"votes"})
    vote_strategies: ClassVar[frozenset[str]] = frozenset({"majority", "gated"})
    binary_rewards: ClassVar[bool] = True

    def __init__(self, options: GMAEOptions) -> None:
        self.options = options

    def advantages(self, samples: TrainingSamples) -> AdvantageEstimate:
        """One for each trajectory."""
        rows = [self._of_prompt(pool) for pool in pools_of(samples)]
        rewards = [reward for row, _ in rows for reward in row]
        return AdvantageEstimate(
            [value for _, row in rows for value in row],
            scores=rewards,
            metrics={REWARD: sum(rewards) / len(rewards)} if rewards else {},
        )

    def _of_prompt(self, pool: VotePool) -> tuple[list[float], list[float]]:
        """(probability of a reward, advantage) of each trained sample."""
        if not pool.trained:
            return [], []
        contexts = group_contexts(pool.class_sizes, pool.silent, len(pool.trained))
        mine = [contexts[place] for place in pool.trained]
        rewards = [each.reward for each in mine]
        if self.options.rewards == "joint":
            return rewards, [each.advantage for each in mine]
        return rewards, poisson_binomial_advantages(rewards).tolist()
