"""The trained tokens of a batch in rows, for estimators that go from token to token.

With `episode` a row holds the tokens of all steps of an episode, in order, and the outcome is earned once, at the end. With `step`
each step is a row that ends with the outcome, as in verl-agent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from skill_ttrl.rl.advantages import GroupLevel
from skill_ttrl.rl.batch import RolloutBatch


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
    def of(cls, batch: RolloutBatch, level: GroupLevel) -> TokenRows:
        """The rows of a batch: one a trajectory that has trained tokens, or one a turn."""
        places_K = batch.trained_F.nonzero().squeeze(1)
        turn_K, trajectory_K = batch.turn_F[places_K], batch.trajectory_index_N[batch.item_F[places_K]]
        owner_K = trajectory_K if level == "episode" else turn_K
        _, row_K, counts_N = torch.unique_consecutive(owner_K, return_inverse=True, return_counts=True)
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

    def rewards(self, batch: RolloutBatch, outcomes: Sequence[float], level: GroupLevel) -> Float[Tensor, "N T"]:
        """`token_level_rewards` in rows.

        A batch scores every step with its episode's outcome; with `episode` that of all steps but the last is taken off again.

        Args:
            batch: As the rows were made from.
            outcomes: Reward of each trajectory.
            level: As the rows were made with.
        """
        rewards_N_T = self.padded(batch.rewards_F)
        if level == "episode":
            outcomes_N = torch.tensor(outcomes)[self.trajectory_N]  # float32, as those of the batch
            rewards_N_T = rewards_N_T - self.ends_step_N_T * outcomes_N[:, None]
        return rewards_N_T

    def per_token(self, within: float, across: float | None) -> float | Float[Tensor, "N T"]:
        """A discount of each token: `within` a step, and `across` from a step's last token to the next step's first (None: the same)."""
        if across is None or across == within:
            return within
        return torch.where(self.ends_step_N_T, across, within).double()
