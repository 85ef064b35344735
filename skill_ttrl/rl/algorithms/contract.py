"""The protocol of an algorithm: its inputs, its outputs and the registry."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from jaxtyping import Float
from pydantic import BaseModel
from torch import Tensor

from skill_ttrl.registry import Registry
from skill_ttrl.rl.batch import Advantages, RolloutBatch, pack
from skill_ttrl.rl.losses.aggregate import Denominators
from skill_ttrl.types import Group, Trajectory, VoteResult


@dataclass(frozen=True, slots=True)
class TrainingSamples:
    """The rollouts of one step that contribute to the loss. Further inputs of an algorithm become fields here."""

    groups: Sequence[Group]
    """Each trajectory carries its reward."""
    votes: Sequence[VoteResult] | None = None
    """The vote of each group, as it bears on these rollouts (`VoteResult.select`); None where votes are not rewarded."""

    @property
    def trajectories(self) -> list[Trajectory]:
        """All of them, group after group."""
        return [trajectory for group in self.groups for trajectory in group.trajectories]

    @property
    def rewards(self) -> list[float]:
        """Reward of each trajectory; 0 for one without a reward."""
        return [trajectory.reward or 0.0 for trajectory in self.trajectories]

    @property
    def owners(self) -> list[int]:
        """Position of the group of each trajectory."""
        return [place for place, group in enumerate(self.groups) for _ in group.trajectories]


@dataclass(frozen=True, slots=True)
class LossInputs:
    """One padded micro-batch: N sequences of up to R response tokens. Further inputs of a loss become fields here."""

    log_probs: Float[Tensor, "N R"]
    """Of the policy that learns, with gradient, in nats."""
    old_log_probs: Float[Tensor, "N R"]
    """Of the policy that sampled."""
    advantages: Float[Tensor, "N R"]
    """Weighted by the sampler's correction, where there is one."""
    response_mask: Float[Tensor, "N R"]
    """1 at trained tokens, 0 elsewhere."""
    denominators: Denominators
    """Of the mini-batch that this is a part of."""


class Algorithm(Protocol):
    """Advantages and loss."""

    @property
    def zero_without_advantage(self) -> bool:
        """Set where loss and gradient are exactly 0 wherever the advantage is 0: such items are then not computed."""

    def advantages(self, samples: TrainingSamples) -> Advantages:
        """An entry for each trajectory, group after group: one number, one a step, or one for each token of each step."""

    def loss(self, inputs: LossInputs) -> tuple[Float[Tensor, ""], dict[str, Tensor]]:
        """(loss, info): `info` holds detached means over the trained tokens; `ratio_max` is a maximum."""


class AlgorithmType(Protocol):
    """A class of algorithms, called with its options once a run."""

    @property
    def options_type(self) -> type[BaseModel]:
        """The options, with their defaults and checks."""

    def __call__(self, options: Any, /) -> Algorithm:
        """Build it from an `options_type`."""


ALGORITHMS: Registry[AlgorithmType] = Registry("algorithm")


def make_batch(
    chosen: Sequence[tuple[Group, VoteResult]], algorithm: Algorithm, *, votes_rewarded: bool
) -> RolloutBatch:
    """Compute the advantages of the chosen groups and pack everything into tensors.

    With `votes_rewarded` the rewards come from the votes, which may then shape the advantages too.
    """
    groups = [group for group, _ in chosen]
    samples = TrainingSamples(groups, [vote for _, vote in chosen] if votes_rewarded else None)
    return pack(groups, algorithm.advantages(samples))
