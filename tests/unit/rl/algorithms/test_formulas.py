"""Formulas of algorithms: laws, enumerations, and values by hand that no golden test holds."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from skill_ttrl.rl.algorithms import (
    build_algorithm,
    compute_gae_advantage,
    compute_grpo_nsr_outcome_advantage,
    group_advantages,
)
from skill_ttrl.rl.algorithms.negative import reward_to_go

SAMPLES = st.lists(
    st.tuples(st.sampled_from([0.0, 0.25, 0.5, 1.0]), st.sampled_from([0.0, 1.0]), st.integers(0, 2)),
    min_size=1,
    max_size=12,
)


def test_rloo_over_steps_takes_the_mean_of_the_other_episodes() -> None:
    # Episodes (1, 0), (2), (0): the means of the others are 1, 1/4 and 5/4.
    rloo: Any = build_algorithm({"type": "rloo"})
    assert rloo.estimate([1.0, 0.0, 2.0, 0.0], [0] * 4, [7, 7, 8, 9]).tolist() == pytest.approx([0, -1, 1.75, -1.25])


@given(SAMPLES)
def test_grpo_nsr_with_both_weights_one_is_grpo_over_tokens(samples: list[tuple[float, float, int]]) -> None:
    rewards, scores, groups = map(list, zip(*samples, strict=True))
    mask = torch.tensor([[1.0, 1.0, 0.0]] * len(samples))
    at_last = torch.tensor([[0.0, 1.0, 0.0]])
    columns = (torch.tensor(rewards)[:, None] * at_last, torch.tensor(scores)[:, None] * at_last, mask, groups)
    found, returns = compute_grpo_nsr_outcome_advantage(*columns)
    assert torch.equal(found, group_advantages(rewards, groups)[:, None] * mask) and torch.equal(found, returns)
    # Correctness is of the scores; one at the threshold is wrong.
    halves, _ = compute_grpo_nsr_outcome_advantage(*columns, positive_weight=0.5, negative_weight=3.0)
    weights = torch.tensor([0.5 if score > 0.5 else 3.0 for score in scores])
    assert torch.allclose(halves, found * weights[:, None])


def test_reward_to_go_stays_within_its_item() -> None:
    rewards = torch.tensor([0.0, -0.5, 1.0, 0.25, 2.0])
    assert reward_to_go(rewards, torch.tensor([0, 0, 0, 1, 1])).tolist() == [0.5, 0.5, 1.0, 2.25, 2.0]
    assert reward_to_go(torch.zeros(0), torch.zeros(0, dtype=torch.long)).tolist() == []


@given(st.integers(0, 2**31), st.floats(0.1, 1), st.floats(0, 1))
def test_gae_of_masked_tokens_is_gae_of_the_others(seed: int, gamma: float, lam: float) -> None:
    draw = torch.Generator().manual_seed(seed)
    rewards, values = torch.rand(3, 7, generator=draw).double(), torch.rand(3, 7, generator=draw).double()
    mask = (torch.rand(3, 7, generator=draw) < 0.6).double()
    advantages, returns = compute_gae_advantage(rewards, values, mask, gamma, lam)
    for row in range(3):
        inside = mask[row] > 0
        ones = torch.ones(1, int(inside.sum()))
        alone = compute_gae_advantage(rewards[row, inside][None], values[row, inside][None], ones, gamma, lam)
        assert torch.allclose(advantages[row, inside], alone[0][0]) and torch.allclose(
            returns[row, inside], alone[1][0]
        )
    assert float((advantages * (1 - mask)).abs().max()) == 0.0
