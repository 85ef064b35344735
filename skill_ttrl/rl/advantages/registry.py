"""The names under which a config chooses an advantage estimator."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Protocol

from jaxtyping import Float
from torch import Tensor

from skill_ttrl.registry import Registry


class AdvantageEstimator(Protocol):
    """Rewards of N tries and the group of each, to one advantage a try."""

    def __call__(
        self, rewards: Sequence[float] | Tensor, groups: Sequence[Hashable] | Tensor, epsilon: float
    ) -> Float[Tensor, " N"]:
        """Advantages (N,) of `rewards` (N,) within `groups` (N,)."""
        ...


ADVANTAGES: Registry[AdvantageEstimator] = Registry("advantage")
