"""Generalised advantage estimation, for learners with a critic, and whitening (arXiv 1506.02438, equation 16)."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from skill_ttrl.types import equal_rewards


def compute_gae_advantage(
    token_level_rewards: Float[Tensor, "N T"],
    values: Float[Tensor, "N T"],
    response_mask: Float[Tensor, "N T"],
    gamma: float | Float[Tensor, "N T"] = 1.0,
    lam: float | Float[Tensor, "N T"] = 1.0,
) -> tuple[Float[Tensor, "N T"], Float[Tensor, "N T"]]:
    """A_t = delta_t + gamma * lam * A_{t+1}, with delta_t = r_t + gamma * V_{t+1} - V_t.

    Tokens outside the mask (padding, text of the environment) are stepped over: the token before them looks at the next
    token inside. The result is not whitened; see `whiten_advantages`.

    Args:
        token_level_rewards: Reward at each token (N, T).
        values: Critic's value at each token (N, T).
        response_mask: 1 at response tokens (N, T).
        gamma: Discount between a token and the next one inside, in [0, 1]; with (N, T) each token has its own.
        lam: Trace decay in [0, 1], likewise.

    Returns:
        (advantages, returns), both (N, T) and 0 outside the mask; returns are advantages + values.
    """
    inside_T_N = response_mask.T > 0
    gammas_T_N = torch.as_tensor(gamma, dtype=values.dtype, device=values.device).expand(values.shape).T
    traces_T_N = gammas_T_N * torch.as_tensor(lam, dtype=values.dtype, device=values.device).expand(values.shape).T
    values_T_N, rewards_T_N = values.T, token_level_rewards.T
    advantage_N = values.new_zeros(len(values))
    next_value_N = torch.zeros_like(advantage_N)
    columns = []
    for t in range(values.shape[1] - 1, -1, -1):
        delta_N = rewards_T_N[t] + gammas_T_N[t] * next_value_N - values_T_N[t]
        advantage_N = torch.where(inside_T_N[t], delta_N + traces_T_N[t] * advantage_N, advantage_N)
        next_value_N = torch.where(inside_T_N[t], values_T_N[t], next_value_N)
        columns.append(advantage_N)
    advantages_N_T = torch.stack(columns[::-1], dim=1) if columns else torch.zeros_like(values)
    return advantages_N_T * response_mask, (advantages_N_T + values) * response_mask


def whiten_advantages(
    advantages: Float[Tensor, "*S"], mask: Float[Tensor, "*S"], epsilon: float = 1e-8
) -> Float[Tensor, "*S"]:
    """Shift and scale to mean 0 and (unbiased) variance 1 inside the mask; 0 outside it (verl: `masked_whiten`).

    Values that are all equal become exactly 0.

    Args:
        advantages: Any values, of any shape.
        mask: 1 where they count, of the same shape.
        epsilon: Added to the variance.
    """
    values, inside = advantages.double(), mask.double()
    chosen = values[inside > 0]
    if len(chosen) == 0 or equal_rewards(chosen.tolist()):
        return torch.zeros_like(advantages)
    count = inside.sum()
    centred = (values - (values * inside).sum() / count) * inside
    variance = centred.square().sum() / (count - 1)
    return (centred * (variance + epsilon).rsqrt()).to(advantages.dtype)
