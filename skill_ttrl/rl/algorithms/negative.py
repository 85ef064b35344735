"""Negative sample reinforcement: correct and wrong samples weigh differently (arXiv 2506.01347): PSR, NSR, W-REINFORCE, GRPO-NSR.

A sample is correct where its score is above a threshold. Correctness comes from `token_level_scores`, magnitude from
`token_level_rewards`, so that a KL penalty changes how much is learnt and never which half a sample belongs to.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Bool, Float, Int
from pydantic import Field, model_validator
from torch import Tensor

from skill_ttrl.config import Section
from skill_ttrl.rl.algorithms.grpo import (
    ALGORITHMS,
    AdvantageEstimate,
    BuiltIn,
    Groups,
    LevelOptions,
    Rewards,
    RewardScale,
    TrainingSamples,
    by_step,
    group_advantages,
    relative_advantages,
)
from skill_ttrl.rl.batch import RolloutBatch

Half = Literal["correct", "wrong", "both"]


def is_correct(scores: Rewards, threshold: float = 0.5) -> Bool[Tensor, " N"]:
    """Mark the samples whose score (N,) is above the threshold."""
    return torch.as_tensor(scores, dtype=torch.float64) > threshold


def compute_grpo_nsr_outcome_advantage(
    token_level_rewards: Float[Tensor, "N T"],
    token_level_scores: Float[Tensor, "N T"],
    response_mask: Float[Tensor, "N T"],
    prompt_ids: Groups,
    positive_weight: float = 1.0,
    negative_weight: float = 1.0,
    threshold: float = 0.5,
    norm_by_std: bool = True,
    epsilon: float = 1e-6,
) -> tuple[Float[Tensor, "N T"], Float[Tensor, "N T"]]:
    """GRPO-NSR over tokens: A_i = w(s_i) (r_i - mean) / (std + epsilon), with one weight for correct samples and one for wrong ones.

    Args:
        token_level_rewards: Their sum r_i is the magnitude (N, T).
        token_level_scores: Their sum s_i says which samples are correct (N, T).
        response_mask: 1 at response tokens (N, T).
        prompt_ids: Group of each response (N).
        positive_weight: w where the score is above the threshold.
        negative_weight: w elsewhere.
        threshold: Score above which a sample is correct.
        norm_by_std: Divide by the group's standard deviation; else its mean alone is taken off.
        epsilon: Added to the standard deviation.

    Returns:
        (advantages, returns), both (N, T) and 0 outside the mask. Without a critic the two are the same. A group whose rewards are all
        equal gets 0, whatever the weights are.
    """
    rewards_N = (token_level_rewards * response_mask).sum(-1)
    base_N = group_advantages(rewards_N, prompt_ids, epsilon, scale="group" if norm_by_std else "none")
    correct_N = is_correct((token_level_scores * response_mask).sum(-1), threshold)
    weighted_N = torch.where(correct_N, positive_weight * base_N, negative_weight * base_N)
    advantages_N_T = weighted_N.to(response_mask.device)[:, None] * response_mask
    return advantages_N_T, advantages_N_T.clone()


def reward_to_go(rewards_F: Float[Tensor, " F"], item_F: Int[Tensor, " F"]) -> Float[Tensor, " F"]:
    """Sum the rewards of each token and of all that follow it in its item, without a discount.

    Args:
        rewards_F: `token_level_rewards`, flat over all items, those of an item side by side.
        item_F: Item (or turn) of each token, 0 to N - 1.
    """
    values_F = rewards_F.double()
    totals_N = torch.zeros(int(item_F.max()) + 1 if len(item_F) else 0, dtype=torch.float64)
    totals_N.index_add_(0, item_F, values_F)
    later_items_N = totals_N.flip(0).cumsum(0).flip(0) - totals_N
    return (values_F.flip(0).cumsum(0).flip(0) - later_items_N[item_F]).to(rewards_F.dtype)


def nsr_advantages(
    rewards: Float[Tensor, " M"], correct: Bool[Tensor, " M"], half: Half, positive_weight: float = 1.0
) -> Float[Tensor, " M"]:
    """PSR, NSR and W-REINFORCE: A = w r on correct samples and r - 1 on wrong ones, without a baseline.

    With rewards of 0 and 1 a correct sample has w and a wrong one -1. In contrast to GRPO a group whose rewards are all equal
    still learns.

    Args:
        rewards: One for each sample; or for each token its reward-to-go (`reward_to_go`).
        correct: Whether the sample is correct.
        half: The samples that learn: `correct` (PSR), `wrong` (NSR) or `both` (W-REINFORCE); the others get 0.
        positive_weight: w (W-REINFORCE: 0.1).

    Returns:
        Advantages (M,).
    """
    positive = positive_weight * rewards if half != "wrong" else torch.zeros_like(rewards)
    negative = rewards - 1.0 if half != "correct" else torch.zeros_like(rewards)
    return torch.where(correct, positive, negative)


# PSR, NSR and W-REINFORCE: learning from correct samples, from wrong ones, or from both with unequal weight (arXiv 2506.01347).
#
# Section 3 and equations 4 to 6: with rewards of 0 and 1, PSR raises correct samples by A = r, NSR lowers wrong ones by A = r - 1,
# and W-REINFORCE does both, correct ones times lambda. No baseline and no group: where all samples of a prompt are wrong, GRPO learns
# nothing and NSR lowers all of them. As in the authors' code the half that does not learn is dropped from the batch, and with a KL
# penalty in the reward a token's advantage has its reward-to-go in r's place. Further rewards (`rl.extra_rewards`) are part of r and
# decide nothing: `rl.reward` alone says which samples are correct.


class HalfOptions(Section):
    """Options of PSR and NSR."""

    threshold: float = 0.5
    """A sample is correct where its `rl.reward` is above this; before a KL penalty."""


class WReinforceOptions(HalfOptions):
    """Options of W-REINFORCE."""

    positive_weight: float = Field(default=0.1, ge=0)
    """Lambda, the factor of correct samples."""


class _Signed(BuiltIn):
    """Base of the three."""

    options_type: ClassVar[type[Section]] = HalfOptions
    half: ClassVar[Half]

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self.positive_weight: float = getattr(options, "positive_weight", 1.0)

    def advantages(self, samples: TrainingSamples) -> AdvantageEstimate:
        """One for each token; for texts without tokens one for each step."""
        if samples.batch is not None:
            return self._of_tokens(samples.batch, samples.main_scores)
        pairs = zip(samples.step_rewards, samples.main_scores, strict=True)
        return AdvantageEstimate(
            [
                nsr_advantages(
                    torch.tensor(rewards), is_correct(scores, self.options.threshold), self.half, self.positive_weight
                ).tolist()
                for rewards, scores in pairs
            ]
        )

    def _of_tokens(self, batch: RolloutBatch, scores: Sequence[Sequence[float]]) -> AdvantageEstimate:
        by_turn = [scores[trajectory][step] for trajectory, step in batch.turn_places]
        correct_F = is_correct(by_turn, self.options.threshold)[batch.turn_F]
        to_go_F = reward_to_go(batch.rewards_F, batch.turn_F)
        advantages_F = nsr_advantages(to_go_F, correct_F, self.half, self.positive_weight)
        if self.half == "both":
            return AdvantageEstimate(advantages_F)
        learns_F = correct_F if self.half == "correct" else ~correct_F
        return AdvantageEstimate(advantages_F, trained_F=batch.trained_F & learns_F)


@ALGORITHMS.register("psr")
class PSR(_Signed):
    """Positive sample reinforcement: correct samples alone learn."""

    half = "correct"


@ALGORITHMS.register("nsr")
class NSR(_Signed):
    """Negative sample reinforcement: wrong samples alone learn."""

    half = "wrong"


@ALGORITHMS.register("w_reinforce")
class WReinforce(_Signed):
    """Weighted REINFORCE: both halves, correct ones by `positive_weight`."""

    options_type = WReinforceOptions
    half = "both"


# GRPO-NSR: GRPO with separate weights for correct and wrong samples, as a fork of TTRL has it.
#
# The fork publishes what it does and no values: `token_level_scores` decide if a sample is correct, `token_level_rewards` (after a
# KL penalty) how much it is worth, with or without the group's standard deviation. That weights multiply the finished advantage is
# inferred. Both weights 1 are GRPO. Further rewards (`rl.extra_rewards`) and a length penalty are part of the magnitude alone: a wrong
# answer in the right format stays wrong.


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

    @model_validator(mode="after")
    def _learns(self) -> GRPONSROptions:
        if not self.positive_weight and not self.negative_weight:
            raise ValueError(
                "positive_weight and negative_weight are both 0, so nothing would be learned. Set one above 0"
            )
        return self


@ALGORITHMS.register("grpo_nsr")
class GRPONSR(BuiltIn):
    """GRPO's advantages, weighted by whether a sample is correct."""

    options_type = GRPONSROptions

    def advantages(self, samples: TrainingSamples) -> AdvantageEstimate:
        """One for each step: the advantage of GRPO times the weight of the half that the step belongs to."""
        options, scores = self.options, samples.main_scores
        scale: RewardScale = "group" if options.norm_by_std else "none"
        base = relative_advantages(samples, partial(group_advantages, scale=scale), options.level)
        correct = [[score > options.threshold for score in row] for row in scores]
        weighted = [
            [
                value * (options.positive_weight if good else options.negative_weight)
                for good, value in zip(row, by_step(values, len(row)), strict=True)
            ]
            for row, values in zip(correct, base, strict=True)
        ]
        flags = [good for row in correct for good in row]
        steps = [step for each in samples.trajectories for step in each.steps]
        tokens = [0 if step.completion is None else step.completion.num_sampled_tokens for step in steps]
        of_correct = sum(count for count, good in zip(tokens, flags, strict=True) if good)
        metrics = {POSITIVE: sum(flags) / max(1, len(flags)), POSITIVE_TOKENS: of_correct / max(1, sum(tokens))}
        return AdvantageEstimate(weighted, metrics=metrics)
