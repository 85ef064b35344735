"""Returns from each token on: REINFORCE++; GAE (PPO) over the values of a critic."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from pydantic import Field
from torch import Tensor

from skill_ttrl.config import Section
from skill_ttrl.errors import ConfigError
from skill_ttrl.rl.algorithms.grpo import (
    ALGORITHMS,
    AdvantageEstimate,
    BuiltIn,
    GroupRelative,
    Groups,
    Rewards,
    TrainingSamples,
    group_advantages,
)
from skill_ttrl.rl.batch import RolloutBatch
from skill_ttrl.types import equal_rewards


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
        gamma: Discount between a token and the next one inside, in [0, 1].
        lam: Trace decay in [0, 1].

    Returns:
        (advantages, returns), both (N, T) and 0 outside the mask; returns are advantages + values.
    """
    inside_T_N = response_mask.T > 0
    values_T_N, rewards_T_N = values.T, token_level_rewards.T
    advantage_N = values.new_zeros(len(values))
    next_value_N = torch.zeros_like(advantage_N)
    columns = []
    for t in range(values.shape[1] - 1, -1, -1):
        delta_N = rewards_T_N[t] + gamma * next_value_N - values_T_N[t]
        advantage_N = torch.where(inside_T_N[t], delta_N + gamma * lam * advantage_N, advantage_N)
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


def returns_to_go(
    token_level_rewards: Float[Tensor, "N T"],
    response_mask: Float[Tensor, "N T"],
    gamma: float = 1.0,
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


# The trained tokens of a batch in rows, for estimators that go from token to token.
#
# A row holds the tokens of all steps of an episode, in order; the outcome is earned once, at the end.


class TokenRows(NamedTuple):
    """Where the trained tokens of a flat batch stand among rows (N, T) without gaps, padded on the right."""

    places_K: Int[Tensor, " K"]
    """In the flat batch."""
    slots_K: Int[Tensor, " K"]
    """In the flattened (N, T)."""
    mask_N_T: Float[Tensor, "N T"]
    """1 at tokens."""
    ends_step_N_T: Bool[Tensor, "N T"]
    """At the last token of a step that another step of the row follows."""
    trajectory_N: Int[Tensor, " N"]
    """Trajectory of each row; of an empty row any."""

    @classmethod
    def of(cls, batch: RolloutBatch) -> TokenRows:
        """The rows of a batch: one a trajectory that has trained tokens."""
        places_K = batch.trained_F.nonzero().squeeze(1)
        turn_K, trajectory_K = batch.turn_F[places_K], batch.trajectory_index_N[batch.item_F[places_K]]
        _, row_K, counts_N = torch.unique_consecutive(trajectory_K, return_inverse=True, return_counts=True)
        starts_N = counts_N.cumsum(0) - counts_N
        column_K = torch.arange(len(places_K)) - starts_N[row_K]
        width = int(counts_N.max()) if len(counts_N) else 0
        slots_K = row_K * width + column_K
        mask = torch.zeros(len(counts_N) * width)
        mask[slots_K] = 1.0
        follows_K = torch.zeros(len(places_K), dtype=torch.bool)
        follows_K[:-1] = (row_K[1:] == row_K[:-1]) & (turn_K[1:] != turn_K[:-1])
        ends = torch.zeros(len(counts_N) * width, dtype=torch.bool)
        ends[slots_K] = follows_K
        shape = (len(counts_N), width)
        return cls(places_K, slots_K, mask.view(shape), ends.view(shape), trajectory_K[starts_N])

    def padded(self, values_F: Float[Tensor, " F"]) -> Float[Tensor, "N T"]:
        """Values of the flat batch in rows, in float64; 0 as padding."""
        rows = torch.zeros(self.mask_N_T.numel(), dtype=torch.float64)
        rows[self.slots_K] = values_F[self.places_K].double()
        return rows.view_as(self.mask_N_T)

    def flat(self, values_N_T: Float[Tensor, "N T"], length: int) -> Float[Tensor, " F"]:
        """Values of rows in the flat batch of `length` tokens, in float32; 0 where nothing is trained."""
        values_F = torch.zeros(length)
        values_F[self.places_K] = values_N_T.flatten()[self.slots_K].float()
        return values_F

    def rewards(self, batch: RolloutBatch, outcomes: Sequence[float]) -> Float[Tensor, "N T"]:
        """`token_level_rewards` in rows.

        A batch scores every step with its episode's outcome; that of all steps but the last is taken off again.

        Args:
            batch: As the rows were made from.
            outcomes: Reward of each trajectory.
        """
        outcomes_N = torch.tensor(outcomes)[self.trajectory_N]  # float32, as those of the batch
        return self.padded(batch.rewards_F) - self.ends_step_N_T * outcomes_N[:, None]


class ReinforcePlusPlusOptions(Section):
    """Options of REINFORCE++."""

    gamma: float = Field(default=1.0, ge=0, le=1)
    """Discount from a token to the next."""


@ALGORITHMS.register("reinforce_plus_plus")
class ReinforcePlusPlus(BuiltIn):
    """Returns of the tokens, the KL penalty in the rewards, whitened over the batch (arXiv 2501.03262)."""

    options_type = ReinforcePlusPlusOptions
    whitens = True

    def advantages(self, samples: TrainingSamples) -> AdvantageEstimate:
        """One for each token."""
        batch = tokens_of(samples)
        rows = TokenRows.of(batch)
        rewards = rows.rewards(batch, samples.rewards)
        returns = returns_to_go(rewards, rows.mask_N_T, self.options.gamma)
        return AdvantageEstimate(rows.flat(returns, len(batch.tokens_F)))


@ALGORITHMS.register("reinforce_plus_plus_baseline")
class ReinforcePlusPlusBaseline(GroupRelative):
    """Reward minus its group's mean; whitened over the tokens of the batch (arXiv 2501.03262)."""

    whitens = True

    def estimate(self, rewards: Rewards, groups: Groups, episodes: Sequence[Hashable] | None = None) -> Tensor:
        """Centre rewards (N,) in these groups (N,)."""
        return group_advantages(rewards, groups, episodes=episodes, scale="none")


def tokens_of(samples: TrainingSamples) -> RolloutBatch:
    """The samples as tokens.

    Raises:
        ConfigError: they have none: texts that were not sampled here.
    """
    if samples.batch is None:
        raise ConfigError(
            "This rl.algorithm works on tokens, but these responses are texts without tokens. Use grpo, rloo or another that compares "
            "whole responses."
        )
    return samples.batch


class GAEOptions(ReinforcePlusPlusOptions):
    """Options of GAE."""

    lam: float = Field(default=1.0, ge=0, le=1)
    """Trace decay from a token to the next (verl: 1; PPO for RLHF: 0.95)."""


@ALGORITHMS.register("ppo")
@ALGORITHMS.register("gae")
class GAE(BuiltIn):
    """Advantages of the tokens over the values of a critic, whitened over the batch."""

    options_type = GAEOptions
    whitens = True
    requires = frozenset({"critic"})

    def advantages(self, samples: TrainingSamples) -> AdvantageEstimate:
        """One for each token, and the returns that the critic learns from.

        Raises:
            ValueError: the batch has no values.
        """
        batch, options = tokens_of(samples), self.options
        if batch.values_F is None:
            raise ValueError("GAE needs the values of a critic (RolloutBatch.values_F).")
        rows = TokenRows.of(batch)
        found, returns = compute_gae_advantage(
            rows.rewards(batch, samples.rewards),
            rows.padded(batch.values_F),
            rows.mask_N_T,
            options.gamma,
            options.lam,
        )
        length = len(batch.tokens_F)
        return AdvantageEstimate(rows.flat(found, length), returns_F=rows.flat(returns, length))
