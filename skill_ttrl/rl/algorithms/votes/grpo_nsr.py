"""GRPO-NSR: GRPO with separate weights for correct and wrong samples, as a fork of TTRL has it.

The fork publishes what it does and no values: `token_level_scores` decide if a sample is correct, `token_level_rewards` (after a
KL penalty) how much it is worth, with or without the group's standard deviation. That weights multiply the finished advantage is
inferred. Both weights 1 are GRPO. Further rewards (`rl.extra_rewards`) and a length penalty are part of the magnitude alone: a wrong
answer in the right format stays wrong.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import ClassVar

from pydantic import Field, model_validator
from torch import Tensor

from skill_ttrl.config import Section
from skill_ttrl.rl.advantages import RewardScale, group_advantages
from skill_ttrl.rl.algorithms.contract import ALGORITHMS, AdvantageEstimate, TrainingSamples
from skill_ttrl.rl.algorithms.group_relative.relative import GroupRelative, LevelOptions, by_step, relative_advantages

POSITIVE = "training/grpo_nsr_pos_ratio"
"""Metric: share of the samples that are correct."""
POSITIVE_TOKENS = "training/grpo_nsr_pos_token_ratio"
"""Metric: share of the trained tokens that belong to them."""


class GRPONSROptions(LevelOptions):
    """Options of GRPO-NSR."""

    positive_weight: float = Field(default=1.0, ge=0)
    """Factor of the advantages of correct samples (W-REINFORCE, arXiv 2506.01347, weighs them 0.1)."""
    negative_weight: float = Field(default=1.0, ge=0)
    """Factor of the advantages of wrong samples."""
    threshold: float = 0.5
    """A sample is correct where its `rl.reward` is above this; before a KL penalty."""
    norm_by_std: bool = True
    """Divide by the group's standard deviation; else its mean alone is taken off."""
    epsilon: float = Field(default=1e-6, gt=0)
    """Added to the standard deviation."""

    @model_validator(mode="after")
    def _learns(self) -> GRPONSROptions:
        if not self.positive_weight and not self.negative_weight:
            raise ValueError(
                "positive_weight and negative_weight are both 0, so nothing would be learned. Set one above 0"
            )
        return self


@ALGORITHMS.register("grpo_nsr")
class GRPONSR(GroupRelative):
    """See the module."""

    options_type: ClassVar[type[Section]] = GRPONSROptions
    options: GRPONSROptions

    def advantages(self, samples: TrainingSamples) -> AdvantageEstimate:
        """One for each step: the advantage of GRPO, shaped by its vote, times the weight of the half that the step belongs to."""
        scores = samples.main_scores
        base = relative_advantages(samples, self.estimate, self.options.level)
        weighted = [
            [self.weight(score) * value for score, value in zip(row, by_step(values, len(row)), strict=True)]
            for row, values in zip(scores, base, strict=True)
        ]
        return AdvantageEstimate(weighted, metrics=self.metrics(samples))

    def estimate(
        self,
        rewards: Sequence[float] | Tensor,
        groups: Sequence[Hashable] | Tensor,
        episodes: Sequence[Hashable] | None = None,
    ) -> Tensor:
        """Estimate advantages (N,) before the weights from rewards (N,) of these groups (N,)."""
        scale: RewardScale = "group" if self.options.norm_by_std else "none"
        return group_advantages(rewards, groups, self.options.epsilon, episodes, scale)

    def weight(self, score: float) -> float:
        """Factor of the advantage of a sample with this score."""
        options = self.options
        return options.positive_weight if score > options.threshold else options.negative_weight

    def metrics(self, samples: TrainingSamples) -> dict[str, float]:
        """Shares of samples and of trained tokens whose `rl.reward` is above the threshold, in the fork's names."""
        steps = [step for each in samples.trajectories for step in each.steps]
        correct = [score > self.options.threshold for row in samples.main_scores for score in row]
        tokens = [0 if step.completion is None else step.completion.num_sampled_tokens for step in steps]
        of_correct = sum(count for count, good in zip(tokens, correct, strict=True) if good)
        return {POSITIVE: sum(correct) / max(1, len(correct)), POSITIVE_TOKENS: of_correct / max(1, sum(tokens))}
