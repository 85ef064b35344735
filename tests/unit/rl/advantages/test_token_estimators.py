"""Estimators from token to token: returns, REINFORCE++, ReMax, GAE with a discount for each token."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from skill_ttrl.rl.algorithms import (
    compute_gae_advantage,
    compute_reinforce_plus_plus_advantage,
    compute_remax_advantage,
    returns_to_go,
    whiten_advantages,
)

ROW, VALUES = torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[0.5, 1.0, 1.5]])


def test_returns_run_from_the_end_and_step_over_tokens_outside_the_mask() -> None:
    whole = torch.ones(1, 3)
    assert returns_to_go(ROW, whole, 0.5).tolist() == [[2.75, 3.5, 3.0]]
    assert returns_to_go(ROW, torch.tensor([[1.0, 1.0, 0.0]])).tolist() == [[3.0, 2.0, 0.0]]
    assert returns_to_go(ROW, torch.tensor([[1.0, 0.0, 1.0]]), 0.5).tolist() == [[2.5, 0.0, 3.0]]


def test_reinforce_plus_plus_whitens_the_returns_over_the_batch() -> None:
    mask = torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.0, 0.0]])
    rewards = torch.cat([ROW, torch.tensor([[1.0, 0.0, 0.0]])])
    advantages, returns = compute_reinforce_plus_plus_advantage(rewards, mask, 1.0)
    assert returns.tolist() == [[6.0, 5.0, 3.0], [1.0, 0.0, 0.0]]
    # Mean 15/4; squares (2.25^2 + 1.25^2 + .75^2 + 2.75^2) / 3 = 59/12.
    scale = (12 / 59) ** 0.5
    assert advantages.flatten().tolist() == pytest.approx(
        [2.25 * scale, 1.25 * scale, -0.75 * scale, -2.75 * scale, 0, 0]
    )


def test_remax_takes_the_greedy_reward_off_every_return() -> None:
    rewards = torch.tensor([[-0.1, 0.0, 1.0], [0.0, 0.0, 0.0]])
    mask = torch.tensor([[1.0, 1.0, 1.0], [1.0, 1.0, 0.0]])
    advantages, returns = compute_remax_advantage(rewards, torch.tensor([0.5, 1.0]), mask)
    assert returns.flatten().tolist() == pytest.approx([0.9, 1.0, 1.0, 0.0, 0.0, 0.0])
    assert advantages.flatten().tolist() == pytest.approx([0.4, 0.5, 0.5, -1.0, -1.0, 0.0])


def test_a_discount_of_each_token_acts_between_it_and_the_next() -> None:
    gamma = torch.tensor([[1.0, 0.5, 1.0]])
    advantages, returns = compute_gae_advantage(ROW, VALUES, torch.ones(1, 3), gamma, 1.0)
    assert returns.tolist() == [[4.5, 3.5, 3.0]]  # 1 + (2 + .5 * 3), 2 + .5 * 3, 3
    assert torch.allclose(advantages, returns - VALUES)
    lam = torch.tensor([[0.0, 1.0, 1.0]])
    first, _ = compute_gae_advantage(ROW, VALUES, torch.ones(1, 3), gamma, lam)
    assert first[0].tolist() == [1.5, 2.5, 1.5]  # 1 + V - .5; then as before


def test_an_empty_batch_has_no_advantages() -> None:
    nothing = torch.zeros(0, 0)
    advantages, returns = compute_gae_advantage(nothing, nothing, nothing)
    assert advantages.shape == returns.shape == (0, 0)
    assert whiten_advantages(nothing, nothing).shape == (0, 0)


@given(st.integers(0, 2**31), st.floats(0.1, 1), st.floats(0, 1))
def test_gae_of_masked_tokens_is_gae_of_the_others(seed: int, gamma: float, lam: float) -> None:
    draw = torch.Generator().manual_seed(seed)
    rewards, values = torch.rand(3, 7, generator=draw).double(), torch.rand(3, 7, generator=draw).double()
    mask = (torch.rand(3, 7, generator=draw) < 0.6).double()
    advantages, returns = compute_gae_advantage(rewards, values, mask, gamma, lam)
    for row in range(3):
        inside = mask[row] > 0
        alone, alone_returns = compute_gae_advantage(
            rewards[row, inside][None], values[row, inside][None], torch.ones(1, int(inside.sum())), gamma, lam
        )
        assert torch.allclose(advantages[row, inside], alone[0]) and torch.allclose(
            returns[row, inside], alone_returns[0]
        )
    assert float((advantages * (1 - mask)).abs().max()) == 0.0
