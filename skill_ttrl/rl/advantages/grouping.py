"""Rewards and their groups, as every group-relative estimator reads them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor


def read_groups(
    rewards: Sequence[float] | Tensor, groups: Sequence[Hashable] | Tensor
) -> tuple[Float[Tensor, " N"], list[list[int]]]:
    """Rewards in float64, and the positions of each group's members, in order of first appearance.

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
    return rewards_N, list(members.values())


def read_episodes(episodes: Sequence[Hashable] | None, count: int) -> Sequence[Hashable]:
    """Episode of each reward; without `episodes` each reward is that of a whole rollout.

    Raises:
        ValueError: not one episode for each of `count` rewards.
    """
    if episodes is None:
        return range(count)
    if len(episodes) != count:
        raise ValueError(f"Expected one episode for each of {count} rewards, found {len(episodes)}.")
    return episodes
