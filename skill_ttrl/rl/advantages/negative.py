"""Negative sample reinforcement: correct and wrong samples weigh differently (arXiv 2506.01347, section 3).

A sample is correct where its score is above a threshold. Correctness comes from `token_level_scores`, magnitude from
`token_level_rewards`, so that a KL penalty changes how much is learnt and never which half a sample belongs to.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from skill_ttrl.rl.advantages.grpo import group_advantages

Half = Literal["correct", "wrong", "both"]


def is_correct(scores: Sequence[float] | Tensor, threshold: float = 0.5) -> Bool[Tensor, " N"]:
    """Mark the samples whose score (N,) is above the threshold."""
    return torch.as_tensor(scores, dtype=torch.float64) > threshold


def grpo_nsr_advantages(
    rewards: Sequence[float] | Tensor,
    scores: Sequence[float] | Tensor,
    groups: Sequence[Hashable] | Tensor,
    *,
    positive_weight: float = 1.0,
    negative_weight: float = 1.0,
    threshold: float = 0.5,
    norm_by_std: bool = True,
    epsilon: float = 1e-6,
) -> Float[Tensor, " N"]:
    """GRPO-NSR: A_i = w(s_i) (r_i - mean) / (std + epsilon), with one weight for correct samples and one for wrong ones.

    Args:
        rewards: Sum of `token_level_rewards` of each of N samples.
        scores: Sum of `token_level_scores` of each (N).
        groups: Group of each (N).
        positive_weight: w where the score is above the threshold.
        negative_weight: w elsewhere.
        threshold: Score above which a sample is correct.
        norm_by_std: Divide by the group's standard deviation; else its mean alone is taken off.
        epsilon: Added to the standard deviation.

    Returns:
        Advantages (N,), float32. A group whose rewards are all equal gets 0, whatever the weights are.
    """
    base_N = group_advantages(rewards, groups, epsilon, scale="group" if norm_by_std else "none")
    return torch.where(is_correct(scores, threshold), positive_weight * base_N, negative_weight * base_N)


def compute_grpo_nsr_outcome_advantage(
    token_level_rewards: Float[Tensor, "N T"],
    token_level_scores: Float[Tensor, "N T"],
    response_mask: Float[Tensor, "N T"],
    prompt_ids: Sequence[Hashable] | Tensor,
    positive_weight: float = 1.0,
    negative_weight: float = 1.0,
    threshold: float = 0.5,
    norm_by_std: bool = True,
    epsilon: float = 1e-6,
) -> tuple[Float[Tensor, "N T"], Float[Tensor, "N T"]]:
    """GRPO-NSR spread over the tokens of each response; see `grpo_nsr_advantages`.

    Returns:
        (advantages, returns), both (N, T) and 0 outside the mask. Without a critic the two are the same.
    """
    advantages_N = grpo_nsr_advantages(
        (token_level_rewards * response_mask).sum(-1),
        (token_level_scores * response_mask).sum(-1),
        prompt_ids,
        positive_weight=positive_weight,
        negative_weight=negative_weight,
        threshold=threshold,
        norm_by_std=norm_by_std,
        epsilon=epsilon,
    )
    advantages_N_T = advantages_N.to(response_mask.device)[:, None] * response_mask
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
