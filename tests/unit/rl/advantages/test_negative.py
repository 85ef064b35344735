"""Negative sample reinforcement: values worked out by hand, and laws."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from skill_ttrl.rl.algorithms import (
    compute_grpo_nsr_outcome_advantage,
    group_advantages,
    grpo_nsr_advantages,
    is_correct,
    nsr_advantages,
    reward_to_go,
)

SAMPLES = st.lists(
    st.tuples(st.sampled_from([0.0, 0.25, 0.5, 1.0]), st.sampled_from([0.0, 1.0]), st.integers(0, 2)),
    min_size=1,
    max_size=12,
)


def test_weights_multiply_the_advantage_of_each_half() -> None:
    """Rewards 1 0 0 0: mean 1/4, deviation 1/2, so GRPO gives 3/2 and -1/2; times 0.1 and 2."""
    found = grpo_nsr_advantages([1, 0, 0, 0], [1, 0, 0, 0], [7] * 4, positive_weight=0.1, negative_weight=2.0)
    assert found.tolist() == pytest.approx([0.15, -1.0, -1.0, -1.0], abs=1e-5)


def test_the_mean_alone_can_be_taken_off() -> None:
    found = grpo_nsr_advantages([1, 0, 0, 0], [1, 0, 0, 0], [7] * 4, positive_weight=0.1, norm_by_std=False)
    assert found.tolist() == pytest.approx([0.075, -0.25, -0.25, -0.25])


def test_correctness_is_of_the_scores_and_magnitude_of_the_rewards() -> None:
    """After a KL penalty the correct sample has the smaller reward: its advantage is negative, and yet weighs as a correct one's."""
    found = grpo_nsr_advantages([0.2, 0.6], [1, 0], [0, 0], positive_weight=0.5, negative_weight=3.0, norm_by_std=False)
    assert found.tolist() == pytest.approx([0.5 * -0.2, 3.0 * 0.2])


def test_a_score_at_the_threshold_is_wrong() -> None:
    assert is_correct([0.5, 0.50001, 1, -1]).tolist() == [False, True, True, False]
    assert is_correct([0.5, 0.3], threshold=0.3).tolist() == [True, False]


@given(SAMPLES)
def test_both_weights_one_are_grpo(samples: list[tuple[float, float, int]]) -> None:
    rewards, scores, groups = map(list, zip(*samples, strict=True))
    assert torch.equal(grpo_nsr_advantages(rewards, scores, groups), group_advantages(rewards, groups))
    plain = grpo_nsr_advantages(rewards, scores, groups, norm_by_std=False)
    assert torch.equal(plain, group_advantages(rewards, groups, scale="none"))


def test_tokens_share_the_advantage_of_their_response() -> None:
    mask = torch.tensor([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]])
    scores = torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
    found, returns = compute_grpo_nsr_outcome_advantage(scores, scores, mask, [0, 0], positive_weight=0.5)
    side = 1 / math.sqrt(2)
    assert torch.allclose(found, torch.tensor([[side / 2, side / 2, 0], [-side, 0, 0]]), atol=1e-5)
    assert torch.equal(found, returns)


def test_psr_nsr_and_w_reinforce_by_hand() -> None:
    rewards, correct = torch.tensor([1.0, 0.0, 0.0]), torch.tensor([True, False, False])
    assert nsr_advantages(rewards, correct, "correct").tolist() == [1, 0, 0]
    assert nsr_advantages(rewards, correct, "wrong").tolist() == [0, -1, -1]
    assert nsr_advantages(rewards, correct, "both", 0.1).tolist() == pytest.approx([0.1, -1, -1])


def test_reward_to_go_stays_within_its_item() -> None:
    rewards = torch.tensor([0.0, -0.5, 1.0, 0.25, 2.0])
    assert reward_to_go(rewards, torch.tensor([0, 0, 0, 1, 1])).tolist() == [0.5, 0.5, 1.0, 2.25, 2.0]
    assert reward_to_go(torch.zeros(0), torch.zeros(0, dtype=torch.long)).tolist() == []
