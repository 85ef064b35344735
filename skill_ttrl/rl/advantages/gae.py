"""Generalised advantage estimation, for learners with a critic, and whitening (arXiv 1506.02438, equation 16)."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


def compute_gae_advantage(
    token_level_rewards: Float[Tensor, "N T"],
    values: Float[Tensor, "N T"],
    response_mask: Float[Tensor, "N T"],
    gamma: float = 1.0,
    lam: float = 1.0,
) -> tuple[Float[Tensor, "N T"], Float[Tensor, "N T"]]:
    """A_t = delta_t + gamma * lam * A_{t+1}, with delta_t = r_t + gamma * V_{t+1} - V_t.

    Tokens outside the mask (padding, text of the environment) are stepped over: the token before them looks at the next
    token inside. The result is not whitened; see `whiten_advantages`.

    Args:
        token_level_rewards: Reward at each token (N, T).
        values: Critic's value at each token (N, T).
        response_mask: 1 at response tokens (N, T).
        gamma: Discount, in [0, 1].
        lam: Trace decay, in [0, 1].

    Returns:
        (advantages, returns), both (N, T) and 0 outside the mask; returns are advantages + values.
    """
    advantage_N = torch.zeros_like(values[:, 0])
    next_value_N = torch.zeros_like(values[:, 0])
    columns = []
    for t in range(values.shape[1] - 1, -1, -1):
        mask_N = response_mask[:, t]
        delta_N = token_level_rewards[:, t] + gamma * next_value_N - values[:, t]
        advantage_N = torch.where(mask_N > 0, delta_N + gamma * lam * advantage_N, advantage_N)
        next_value_N = torch.where(mask_N > 0, values[:, t], next_value_N)
        columns.append(advantage_N)
    advantages_N_T = torch.stack(columns[::-1], dim=1)
    return advantages_N_T * response_mask, (advantages_N_T + values) * response_mask


def whiten_advantages(
    advantages: Float[Tensor, "N T"], mask: Float[Tensor, "N T"], epsilon: float = 1e-8
) -> Float[Tensor, "N T"]:
    """Shift and scale to mean 0 and (unbiased) variance 1 over the masked tokens; 0 outside the mask.

    Args:
        advantages: Any values (N, T).
        mask: 1 at tokens that count (N, T). With fewer than two of them only the mean is taken off.
        epsilon: Added to the variance.
    """
    count = mask.sum()
    mean = (advantages * mask).sum() / count.clamp(min=1)
    centred = (advantages - mean) * mask
    variance = centred.square().sum() / (count - 1).clamp(min=1)
    scale = torch.where(count > 1, (variance + epsilon).rsqrt(), torch.ones_like(variance))
    return centred * scale
