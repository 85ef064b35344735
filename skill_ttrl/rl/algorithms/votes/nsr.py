"""PSR, NSR and W-REINFORCE: learning from correct samples, from wrong ones, or from both with unequal weight (arXiv 2506.01347).

Section 3 and equations 4 to 6: with rewards of 0 and 1, PSR raises correct samples by A = r, NSR lowers wrong ones by A = r - 1,
and W-REINFORCE does both, correct ones times lambda. No baseline and no group: where all samples of a prompt are wrong, GRPO learns
nothing and NSR lowers all of them. As in the authors' code the half that does not learn is dropped from the batch, and with a KL
penalty in the reward a token's advantage has its reward-to-go in r's place. Further rewards (`rl.extra_rewards`) are part of r and
decide nothing: `rl.reward` alone says which samples are correct.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from pydantic import Field

from skill_ttrl.config import Section
from skill_ttrl.rl.advantages import Half, is_correct, nsr_advantages, reward_to_go
from skill_ttrl.rl.algorithms.contract import ALGORITHMS, AdvantageEstimate, Requirement, TrainingSamples
from skill_ttrl.rl.batch import RolloutBatch


class HalfOptions(Section):
    """Options of PSR and NSR."""

    threshold: float = 0.5
    """A sample is correct where its `rl.reward` is above this; before a KL penalty."""
    drop: bool = True
    """Drop the samples that do not learn: they count in no mean and have no KL term. False: they count, with advantage 0."""


class WReinforceOptions(Section):
    """Options of W-REINFORCE."""

    positive_weight: float = Field(default=0.1, ge=0)
    """Lambda, the factor of correct samples."""
    threshold: float = 0.5
    """A sample is correct where its `rl.reward` is above this; before a KL penalty."""


class _Signed:
    """Base of the three."""

    defaults: ClassVar[Mapping[str, Any]] = {}
    requires: ClassVar[frozenset[Requirement]] = frozenset()
    takes_shaped_votes: ClassVar[bool] = False
    half: ClassVar[Half]
    threshold: float
    positive_weight: float = 1.0
    drop: bool = False

    def advantages(self, samples: TrainingSamples) -> AdvantageEstimate:
        """One for each token; for texts without tokens one for each step."""
        if samples.batch is not None:
            return self._of_tokens(samples.batch, samples.main_scores)
        pairs = zip(samples.step_rewards, samples.main_scores, strict=True)
        return AdvantageEstimate(
            [
                nsr_advantages(
                    torch.tensor(rewards), is_correct(scores, self.threshold), self.half, self.positive_weight
                ).tolist()
                for rewards, scores in pairs
            ]
        )

    def _of_tokens(self, batch: RolloutBatch, scores: Sequence[Sequence[float]]) -> AdvantageEstimate:
        by_turn = [scores[trajectory][step] for trajectory, step in batch.turn_places]
        correct_F = is_correct(by_turn, self.threshold)[batch.turn_F]
        to_go_F = reward_to_go(batch.rewards_F, batch.turn_F)
        advantages_F = nsr_advantages(to_go_F, correct_F, self.half, self.positive_weight)
        if not self.drop:
            return AdvantageEstimate(advantages_F)
        learns_F = correct_F if self.half == "correct" else ~correct_F
        return AdvantageEstimate(advantages_F, trained_F=batch.trained_F & learns_F)


class _Half(_Signed):
    options_type: ClassVar[type[Section]] = HalfOptions

    def __init__(self, options: HalfOptions) -> None:
        self.threshold, self.drop = options.threshold, options.drop


@ALGORITHMS.register("psr")
class PSR(_Half):
    """Positive sample reinforcement; see the module."""

    half: ClassVar[Half] = "correct"


@ALGORITHMS.register("nsr")
class NSR(_Half):
    """Negative sample reinforcement; see the module."""

    half: ClassVar[Half] = "wrong"


@ALGORITHMS.register("w_reinforce")
class WReinforce(_Signed):
    """Weighted REINFORCE; see the module."""

    options_type: ClassVar[type[Section]] = WReinforceOptions
    half: ClassVar[Half] = "both"

    def __init__(self, options: WReinforceOptions) -> None:
        self.threshold, self.positive_weight = options.threshold, options.positive_weight
