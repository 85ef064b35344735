"""Group-relative advantages: a rollout is compared with the other rollouts of the same task.

DeepSeekMath (arXiv 2402.03300), section 4.1.2: A_i = (r_i - mean(r)) / std(r) within a group. The divisor is a choice
(`RewardScale`): with none this is Dr. GRPO's advantage (arXiv 2503.20783), with the mean MaxRL's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Literal, assert_never

import torch
from jaxtyping import Float
from torch import Tensor

from skill_ttrl.rl.advantages.grouping import read_episodes, read_groups
from skill_ttrl.types import equal_rewards

RewardScale = Literal["group", "batch", "none", "mean"]
"""Divisor of a group's centred rewards: the group's standard deviation, that of all rewards of the batch (arXiv
2508.08221), nothing, or the group's mean. The first three are TRL's `scale_rewards`; `none` is verl's
`norm_adv_by_std_in_grpo: false`."""


def group_advantages(
    rewards: Sequence[float] | Tensor,
    groups: Sequence[Hashable] | Tensor,
    epsilon: float = 1e-6,
    episodes: Sequence[Hashable] | None = None,
    scale: RewardScale = "group",
) -> Float[Tensor, " N"]:
    """Reward minus its group's mean, over what `scale` names.

    Deviations are unbiased (n - 1). A group of one keeps its reward with `group` and `none` (mean 0, deviation 1), as in
    verl; with the others, and always in TRL, it gets 0. A larger one whose rewards are all equal gets exactly 0.

    With `episodes` a reward is that of one step, and each of a group's E episodes weighs the same, however many of its T_i
    steps are here: mean = 1/E sum_i 1/T_i sum_t r_it, variance = 1/(E - 1) sum_i 1/T_i sum_t (r_it - mean)^2. Where all
    steps of an episode have the same reward this is the z-score over episodes. The variance within episodes is part of it, so
    that with `group` no advantage is beyond sqrt(T_i (E - 1)).

    Args:
        rewards: One for each of N rollouts, or steps.
        groups: Group of each; any hashable ids, or a tensor of integers (N,).
        epsilon: Added to the divisor (verl: 1e-6, TRL: 1e-4).
        episodes: Episode of each step, of one group only; None: each reward is that of a whole rollout.
        scale: The divisor. `mean` is for rewards of at least 0 (MaxRL): hard tasks, where it is small, weigh more.

    Returns:
        Advantages (N,), float32.

    Raises:
        ValueError: the lengths differ, or `mean` with a reward below 0.
    """
    rewards_N, members = read_groups(rewards, groups)
    if scale == "mean" and len(rewards_N) and float(rewards_N.min()) < 0:
        raise ValueError(
            f"Advantages over the mean reward need rewards of at least 0, found {float(rewards_N.min()):g}."
        )
    owners = read_episodes(episodes, len(rewards_N))
    weights_N = _weights(owners)
    over_batch = _deviation(rewards_N, weights_N) if scale == "batch" and len(members) else 1.0
    advantages_N = torch.zeros_like(rewards_N)
    for positions in members:
        rewards_G, weights_G = rewards_N[positions], weights_N[positions]
        lone = scale in ("group", "none") and len({owners[place] for place in positions}) == 1
        if not lone and equal_rewards(rewards_G.tolist()):
            continue
        mean = 0.0 if lone else _mean(rewards_G, weights_G)
        match scale:
            case "group":
                divisor = (1.0 if lone else _deviation(rewards_G, weights_G)) + epsilon
            case "batch":
                divisor = over_batch + epsilon
            case "none":
                divisor = 1.0
            case "mean":
                divisor = mean + epsilon
            case _:
                assert_never(scale)
        advantages_N[positions] = (rewards_G - mean) / divisor
    return advantages_N.to(dtype=torch.float32)


def decoupled_advantages(
    rewards: Sequence[Sequence[float]] | Tensor,
    weights: Sequence[float],
    groups: Sequence[Hashable] | Tensor,
    epsilon: float = 1e-6,
    scale: RewardScale = "group",
) -> Float[Tensor, " N"]:
    """Normalise each of several rewards within its group, and add them up: GDPO (arXiv 2601.05242).

    A reward with a small spread counts as much as one with a large one, which their plain sum would bury. What GDPO does after
    this, a normalisation over the batch, is `whiten_advantages` over tokens in verl and over rollouts in TRL.

    Args:
        rewards: K rewards for each of N rollouts (K, N).
        weights: One for each reward (K).
        groups: Group of each rollout (N).
        epsilon: Added to each deviation (verl: 1e-6, TRL: 1e-4).
        scale: See `group_advantages`.

    Returns:
        Advantages (N,), float32.
    """
    parts = [
        weight * group_advantages(row, groups, epsilon, scale=scale).double()
        for row, weight in zip(rewards, weights, strict=True)
    ]
    return torch.stack(parts).sum(dim=0).float()


def _weights(owners: Sequence[Hashable]) -> Float[Tensor, " N"]:
    """1 over the number of its episode's steps, for each reward: the weights of an episode add up to 1."""
    steps = Counter(owners)
    return torch.tensor([1 / steps[owner] for owner in owners], dtype=torch.float64)


def _mean(rewards_G: Tensor, weights_G: Tensor) -> float:
    return float((weights_G * rewards_G).sum() / weights_G.sum())


def _deviation(rewards_G: Tensor, weights_G: Tensor) -> float:
    """Unbiased standard deviation, the weights counting the observations; 0 for a single one."""
    count = float(weights_G.sum())
    squares = weights_G * (rewards_G - _mean(rewards_G, weights_G)).square()
    return float((squares.sum() / max(round(count) - 1, 1)).sqrt())


def compute_grpo_advantage(
    rewards: Float[Tensor, " N"],
    response_mask: Float[Tensor, "N T"],
    prompt_ids: Sequence[Hashable] | Tensor,
    epsilon: float = 1e-6,
    scale: RewardScale = "group",
) -> tuple[Float[Tensor, "N T"], Float[Tensor, "N T"]]:
    """GRPO advantages spread over the tokens of each response.

    Args:
        rewards: One for each response (N,).
        response_mask: 1 at response tokens, 0 elsewhere (N, T).
        prompt_ids: Group of each response (N,): integers or any hashable ids.
        epsilon: Added to the divisor (verl: 1e-6).
        scale: See `group_advantages`.

    Returns:
        (advantages, returns), both (N, T) and 0 outside the mask. Without a critic the two are the same.
    """
    advantages_N = group_advantages(rewards, prompt_ids, epsilon, scale=scale).to(response_mask.device)
    advantages_N_T = advantages_N[:, None] * response_mask
    return advantages_N_T, advantages_N_T.clone()
