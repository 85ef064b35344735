"""Group-relative advantages: a try is compared with the other tries at the same task.

DeepSeekMath (arXiv 2402.03300), section 4.1.2: A_i = (r_i - mean(r)) / std(r) within a group.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from skill_ttrl.rl.advantages.registry import ADVANTAGES


def group_advantages(
    rewards: Sequence[float] | Tensor, groups: Sequence[Hashable] | Tensor, epsilon: float = 1e-6
) -> Float[Tensor, " N"]:
    """z-score of each reward within its group.

    The standard deviation is the unbiased one (n - 1). A group of one keeps its reward (mean 0, deviation 1), as in
    verl. A group whose rewards are all equal gets exactly 0, so that the learner can leave it out.

    Args:
        rewards: One for each of N tries.
        groups: Group of each try; any hashable ids, or a tensor of integers (N,).
        epsilon: Added to the standard deviation.

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
    members: dict[Hashable, list[int]] = defaultdict(list)
    for position, key in enumerate(keys):
        members[key].append(position)
    advantages_N = torch.zeros_like(rewards_N)
    for positions in members.values():
        rewards_G = rewards_N[positions]
        if len(positions) == 1:
            advantages_N[positions] = rewards_G / (1.0 + epsilon)
        elif rewards_G.min() != rewards_G.max():
            advantages_N[positions] = (rewards_G - rewards_G.mean()) / (rewards_G.std() + epsilon)
    return advantages_N.to(dtype=torch.float32)


ADVANTAGES.register("grpo")(group_advantages)


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
