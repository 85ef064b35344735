"""Advantages of steps among the steps that were taken from the same state: what GiGPO and GraphGPO have in common."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from skill_ttrl.types import equal_rewards


def state_advantages(
    values: Sequence[float], states: Sequence[Hashable], *, std: bool = True, epsilon: float = 1e-6
) -> Float[Tensor, " N"]:
    """Compare the value of each step with those of all steps from its state.

    Args:
        values: What each of N steps is worth, e.g. its discounted return.
        states: State that each step was taken from, with its group.
        std: Divide by the unbiased standard deviation (n - 1) of the state's values.
        epsilon: Added to the standard deviation.

    Returns:
        Value minus the mean over the state's steps (N,), float32; exactly 0 where a state has one step, or equal values.
    """
    values_N = torch.tensor(values, dtype=torch.float64)
    places: dict[Hashable, list[int]] = {}
    for place, state in enumerate(states):
        places.setdefault(state, []).append(place)
    advantages_N = torch.zeros_like(values_N)
    for rows in places.values():
        values_G = values_N[rows]
        if not equal_rewards(values_G.tolist()):
            scale = values_G.std() + epsilon if std else 1.0
            advantages_N[rows] = (values_G - values_G.mean()) / scale
    return advantages_N.float()


def state_metrics(states: Sequence[Hashable]) -> dict[str, float]:
    """`step_group_size` (mean number of steps from a state) and `singleton_states` (share of states with a single step)."""
    sizes: dict[Hashable, int] = {}
    for state in states:
        sizes[state] = sizes.get(state, 0) + 1
    if not sizes:
        return {}
    singles = sum(size == 1 for size in sizes.values())
    return {"step_group_size": len(states) / len(sizes), "singleton_states": singles / len(sizes)}
