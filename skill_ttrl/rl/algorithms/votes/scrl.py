"""SCRL: GRPO on rewards of 1, 0 and -1, where a weak vote gives no positive label but may give negative ones (arXiv 2603.19880).

See `rl.advantages.scrl` for the rules. A difference: an answer's entropy is the mean of -log p of its sampled tokens, an unbiased
estimate that costs no forward pass; the authors take the entropy of the whole distribution at each token.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from statistics import fmean
from typing import Any, ClassVar, Literal

from pydantic import Field

from skill_ttrl.config import Section
from skill_ttrl.errors import ConfigError
from skill_ttrl.rl.advantages import SCRLLabels, group_advantages, scrl_labels, scrl_reward
from skill_ttrl.rl.algorithms.contract import ALGORITHMS, AdvantageEstimate, Requirement, TrainingSamples
from skill_ttrl.rl.algorithms.group_relative.relative import relative_advantages, rescored
from skill_ttrl.rl.algorithms.votes.pool import VotePool, pools_of

POSITIVE, NEGATIVES = "scrl/pseudo_positive_ratio", "scrl/avg_num_negatives"
"""Metrics: share of prompts with a positive label, and mean number of negative ones, in the authors' names."""


class SCRLOptions(Section):
    """Options of SCRL."""

    positive_share: float = Field(default=0.5, ge=0, le=1)
    """Least share of all votes that makes a positive label."""
    margin: float = Field(default=0.15, ge=0, le=1)
    """By more than this it leads the second answer."""
    negative_share: float = Field(default=0.15, ge=0, le=1)
    """An answer with a smaller share, and with at least the prompt's mean entropy, is a negative label."""
    rewards: Literal["binary", "continuous"] = "binary"
    """`binary`: 1, 0 and -1. `continuous`: by share, less `entropy_weight` times the answer's entropy above the prompt's."""
    entropy_weight: float = Field(default=0.1, ge=0)
    """Lambda of the continuous rewards."""
    no_answer_reward: float = -1.0
    """Reward of a sample without an answer (as in the authors' code)."""
    epsilon: float = Field(default=1e-6, gt=0)
    """Added to the group's standard deviation."""


@ALGORITHMS.register("scrl")
class SCRL:
    """See the module."""

    options_type: ClassVar[type[Section]] = SCRLOptions
    defaults: ClassVar[Mapping[str, Any]] = {}
    requires: ClassVar[frozenset[Requirement]] = frozenset({"votes"})
    own_rewards: ClassVar[bool] = True
    vote_strategies: ClassVar[frozenset[str]] = frozenset({"majority", "gated"})

    def __init__(self, options: SCRLOptions) -> None:
        self.options = options

    def advantages(self, samples: TrainingSamples) -> AdvantageEstimate:
        """One for each trajectory; for each step where steps of an episode differ."""
        found = [self._of_prompt(pool) for pool in pools_of(samples)]
        rewards = [reward for _, row in found for reward in row]
        scored = rescored(samples, rewards)
        prompts = max(1, len(found))
        return AdvantageEstimate(
            relative_advantages(scored, partial(group_advantages, epsilon=self.options.epsilon)),
            scores=rewards,
            metrics={
                POSITIVE: sum(labels.positive is not None for labels, _ in found) / prompts,
                NEGATIVES: sum(len(labels.negatives) for labels, _ in found) / prompts,
            },
        )

    def _of_prompt(self, pool: VotePool) -> tuple[SCRLLabels, list[float]]:
        """The labels of a prompt, and the reward of each trained sample."""
        if pool.surprise is None:
            raise ConfigError(
                "rl.algorithm=scrl needs the log-probability of every sampled token; these rollouts have none."
            )
        options = self.options
        by_class: list[list[float]] = [[] for _ in pool.class_sizes]
        for value, place in zip(pool.surprise, pool.class_ids, strict=True):
            if place >= 0:
                by_class[place].append(value)
        seen = (pool.shares, [fmean(values) for values in by_class], fmean(pool.surprise or [0.0]))
        labels = scrl_labels(
            *seen,
            positive_share=options.positive_share,
            margin=options.margin,
            negative_share=options.negative_share,
        )
        rewards = [
            scrl_reward(
                place,
                labels,
                *seen,
                continuous=options.rewards == "continuous",
                negative_share=options.negative_share,
                entropy_weight=options.entropy_weight,
                no_answer=options.no_answer_reward,
            )
            for place in pool.trained
        ]
        return labels, rewards
