"""Group-relative advantages: a rollout is compared with the other rollouts of the same task.

DeepSeekMath (arXiv 2402.03300), section 4.1.2: A_i = (r_i - mean(r)) / std(r) within a group.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor


def group_advantages(
    rewards: Sequence[float] | Tensor,
    groups: Sequence[Hashable] | Tensor,
    epsilon: float = 1e-6,
    episodes: Sequence[Hashable] | None = None,
) -> Float[Tensor, " N"]:
    """z-score of each reward within its group.

    The standard deviation is the unbiased one (n - 1). A group of one keeps its reward (mean 0, deviation 1), as in
    verl. A group whose rewards are all equal gets exactly 0, so that the learner can leave it out.

    With `episodes` a reward is that of one step, and each of a group's E episodes weighs the same, however many of its T_i
    steps are here: mean = 1/E sum_i 1/T_i sum_t r_it, variance = 1/(E - 1) sum_i 1/T_i sum_t (r_it - mean)^2. Where all
    steps of an episode have the same reward this is the z-score over episodes. The variance has that within episodes in it:
    that between their means alone would be 0 where they are equal, and a difference of steps divided by it without bound.
    No advantage is beyond sqrt(T_i (E - 1)).

    Args:
        rewards: One for each of N rollouts, or steps.
        groups: Group of each; any hashable ids, or a tensor of integers (N,).
        epsilon: Added to the standard deviation.
        episodes: Episode of each step, of one group only; None: each reward is that of a whole rollout.

    Returns:
        Advantages (N,), float32.

    Raises:
        ValueError: the lengths differ.
    """
    rewards_N = torch.as_tensor(rewards, dtype=torch.float64)
    keys: Sequence[Hashable] = groups.tolist() if isinstance(groups, Tensor) else groups
    if rewards_N.ndim != 1 or len(keys) != len(rewards_N):
        raise ValueError(
            f"Expected one group id for each reward, found {len(keys)} ids and rewards of shape "
            f"{tuple(rewards_N.shape)}."
        )
    if episodes is not None and len(episodes) != len(rewards_N):
        raise ValueError(f"Expected one episode for each of {len(rewards_N)} rewards, found {len(episodes)}.")
    members: dict[Hashable, list[int]] = defaultdict(list)
    for position, key in enumerate(keys):
        members[key].append(position)
    advantages_N = torch.zeros_like(rewards_N)
    for positions in members.values():
        rewards_G = rewards_N[positions]
        owners = positions if episodes is None else [episodes[place] for place in positions]
        if len(set(owners)) == 1:
            advantages_N[positions] = rewards_G / (1.0 + epsilon)
        elif rewards_G.min() != rewards_G.max():
            mean, deviation = (
                (rewards_G.mean(), rewards_G.std()) if episodes is None else _over_episodes(rewards_G, owners)
            )
            advantages_N[positions] = (rewards_G - mean) / (deviation + epsilon)
    return advantages_N.to(dtype=torch.float32)


def _over_episodes(rewards_G: Tensor, episodes: Sequence[Hashable]) -> tuple[Tensor, Tensor]:
    """Mean and unbiased standard deviation of steps' rewards, each of at least two episodes weighing the same."""
    steps = Counter(episodes)
    weights_G = torch.tensor([1 / steps[episode] for episode in episodes], dtype=rewards_G.dtype)
    mean = (weights_G * rewards_G).sum() / len(steps)
    return mean, ((weights_G * (rewards_G - mean).square()).sum() / (len(steps) - 1)).sqrt()


def compute_grpo_advantage(
    rewards: Float[Tensor, " N"],
    response_mask: Float[Tensor, "N T"],
    prompt_ids: Sequence[Hashable] | Tensor,
    epsilon: float = 1e-6,
) -> tuple[Float[Tensor, "N T"], Float[Tensor, "N T"]]:
    """GRPO advantages spread over the tokens of each response.

    Args:
        rewards: One for each response (N,).
        response_mask: 1 at response tokens, 0 elsewhere (N, T).
        prompt_ids: Group of each response (N,): integers or any hashable ids.
        epsilon: Added to the standard deviation (verl: 1e-6).

    Returns:
        (advantages, returns), both (N, T) and 0 outside the mask. Without a critic the two are the same.
    """
    advantages_N = group_advantages(rewards, prompt_ids, epsilon).to(response_mask.device)
    advantages_N_T = advantages_N[:, None] * response_mask
    return advantages_N_T, advantages_N_T.clone()
