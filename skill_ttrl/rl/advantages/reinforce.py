"""Returns from each token on, without a critic: REINFORCE++ and ReMax."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from skill_ttrl.rl.advantages.gae import compute_gae_advantage, whiten_advantages


def returns_to_go(
    token_level_rewards: Float[Tensor, "N T"],
    response_mask: Float[Tensor, "N T"],
    gamma: float | Float[Tensor, "N T"] = 1.0,
) -> Float[Tensor, "N T"]:
    """G_t = r_t + gamma G_{t+1} over the tokens inside the mask; 0 outside it.

    Tokens outside are stepped over, as verl 0.9 does (before, it began anew there).

    Args:
        token_level_rewards: (N, T).
        response_mask: 1 at response tokens (N, T).
        gamma: Discount in [0, 1], see `compute_gae_advantage`.
    """
    values = torch.zeros_like(token_level_rewards)
    return compute_gae_advantage(token_level_rewards, values, response_mask, gamma, 1.0)[1]


def compute_reinforce_plus_plus_advantage(
    token_level_rewards: Float[Tensor, "N T"],
    response_mask: Float[Tensor, "N T"],
    gamma: float | Float[Tensor, "N T"] = 1.0,
) -> tuple[Float[Tensor, "N T"], Float[Tensor, "N T"]]:
    """Returns of the tokens, whitened over the batch: REINFORCE++ (arXiv 2501.03262).

    Args:
        token_level_rewards: With the KL penalty in them, which is REINFORCE++'s (N, T).
        response_mask: 1 at response tokens (N, T).
        gamma: Discount in [0, 1].

    Returns:
        (advantages, returns), both (N, T) and 0 outside the mask.
    """
    returns_N_T = returns_to_go(token_level_rewards, response_mask, gamma)
    return whiten_advantages(returns_N_T, response_mask), returns_N_T


def compute_remax_advantage(
    token_level_rewards: Float[Tensor, "N T"],
    baselines: Float[Tensor, " N"],
    response_mask: Float[Tensor, "N T"],
) -> tuple[Float[Tensor, "N T"], Float[Tensor, "N T"]]:
    """Returns of the tokens minus the reward of the task's greedy rollout: ReMax (arXiv 2310.10505).

    Args:
        token_level_rewards: (N, T).
        baselines: Reward of the greedy rollout of each row's task (N).
        response_mask: 1 at response tokens (N, T).

    Returns:
        (advantages, returns), both (N, T) and 0 outside the mask.
    """
    returns_N_T = returns_to_go(token_level_rewards, response_mask)
    return (returns_N_T - baselines[:, None]) * response_mask, returns_N_T
