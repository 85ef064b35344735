"""The signature of a group-relative estimator."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from inspect import signature
from typing import Protocol, TypeGuard

from jaxtyping import Float
from torch import Tensor


class AdvantageEstimator(Protocol):
    """Maps the rewards of N rollouts and the group of each onto one advantage a rollout."""

    def __call__(
        self, rewards: Sequence[float] | Tensor, groups: Sequence[Hashable] | Tensor, /
    ) -> Float[Tensor, " N"]:
        """Advantages (N,) of `rewards` (N,) within `groups` (N,)."""


class StepwiseEstimator(Protocol):
    """An estimator that can distinguish the steps of an episode and yet lets each episode weigh the same."""

    def __call__(
        self,
        rewards: Sequence[float] | Tensor,
        groups: Sequence[Hashable] | Tensor,
        /,
        *,
        episodes: Sequence[Hashable] | None = None,
    ) -> Float[Tensor, " N"]:
        """As an `AdvantageEstimator`; with `episodes`, the episode of each, a reward is that of one step."""


def is_stepwise(estimate: AdvantageEstimator) -> TypeGuard[StepwiseEstimator]:
    """True if an estimator takes `episodes`."""
    return "episodes" in signature(estimate).parameters
