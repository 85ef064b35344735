"""Numbers worked out by hand for the learner's formulas."""

from __future__ import annotations

import math

import pytest
import torch

from skill_ttrl.rl.algorithms import compute_gae_advantage, compute_grpo_advantage, group_advantages, whiten_advantages
from skill_ttrl.rl.losses import (
    AggregationMode,
    Denominators,
    aggregate,
    compute_entropy_bonus,
    compute_kl_penalty,
    compute_policy_loss,
)
from skill_ttrl.rl.optim import learning_rate

MASK = torch.tensor([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]])


def test_grpo_group_of_four_and_group_of_one() -> None:
    # Rewards 1 0 0 0: mean 1/4, unbiased variance ((3/4)^2 + 3 (1/4)^2) / 3 = 1/4, deviation 1/2.
    advantages = group_advantages([1.0, 0.0, 0.0, 0.0, 2.0], ["a", "a", "a", "a", "b"], 1e-6)
    high, low = 0.75 / (0.5 + 1e-6), -0.25 / (0.5 + 1e-6)
    assert advantages.tolist() == pytest.approx([high, low, low, low, 2.0 / (1 + 1e-6)], abs=1e-6)


def test_grpo_is_spread_over_the_response_tokens_of_interleaved_groups() -> None:
    mask = torch.tensor([[1.0, 1.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]])
    advantages, returns = compute_grpo_advantage(torch.tensor([1.0, 5.0, 0.0, 5.0]), mask, torch.tensor([7, 3, 7, 3]))
    z = 0.5 / (math.sqrt(0.5) + 1e-6)
    assert torch.allclose(advantages, torch.tensor([[z, z], [0, 0], [-z, -z], [0, 0]]), atol=1e-6)
    assert torch.equal(advantages, returns)


def test_equal_rewards_that_no_float_holds_exactly_give_exactly_nothing() -> None:
    assert group_advantages([0.1] * 7, [0] * 7).tolist() == [0.0] * 7


def test_grpo_refuses_lengths_that_differ() -> None:
    with pytest.raises(ValueError, match="one group id for each reward"):
        group_advantages([1.0, 0.0], [0])


def test_gae_by_hand_steps_over_masked_tokens() -> None:
    rewards = torch.tensor([[0.0, 9.0, 1.0]])
    values = torch.tensor([[0.5, 7.0, 0.25]])
    mask = torch.tensor([[1.0, 0.0, 1.0]])
    advantages, returns = compute_gae_advantage(rewards, values, mask, gamma=0.9, lam=0.8)
    last = 1.0 - 0.25
    first = (0.0 + 0.9 * 0.25 - 0.5) + 0.9 * 0.8 * last
    assert advantages.tolist()[0] == pytest.approx([first, 0.0, last], abs=1e-6)
    assert returns.tolist()[0] == pytest.approx([first + 0.5, 0.0, 1.0], abs=1e-6)


def test_whitening_gives_mean_zero_and_unbiased_variance_one() -> None:
    white = whiten_advantages(torch.tensor([[1.0, 3.0, 100.0]]), torch.tensor([[1.0, 1.0, 0.0]]))
    assert white.tolist()[0] == pytest.approx([-(0.5**0.5), 0.5**0.5, 0.0], abs=1e-6)


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected", "clipped"),
    [
        (1.5, 1.0, -1.2, 1.0),  # gain is clipped above
        (0.5, 1.0, -0.5, 0.0),  # a loss of probability of a good token is not
        (0.5, -1.0, 0.8, 1.0),  # clipped below
        (2.0, -1.0, 2.0, 0.0),  # a gain of probability of a bad token is not
        (5.0, -1.0, 3.0, 1.0),  # but the dual clip bounds it at 3
        (5.0, 1.0, -1.2, 1.0),  # the dual clip is for negative advantages only
    ],
)
def test_clipped_surrogate(ratio: float, advantage: float, expected: float, clipped: float) -> None:
    log_probs, old = torch.tensor([[math.log(ratio) - 1.0]]), torch.tensor([[-1.0]])
    loss, info = compute_policy_loss(log_probs, old, torch.tensor([[advantage]]), torch.ones(1, 1), 0.2, dual_clip=3.0)
    assert float(loss) == pytest.approx(expected, abs=1e-6)
    assert float(info["clip_fraction"]) == clipped
    assert float(info["approx_kl"]) == pytest.approx(ratio - 1 - math.log(ratio), abs=1e-6)
    assert float(info["ratio_mean"]) == float(info["ratio_max"]) == pytest.approx(ratio, abs=1e-5)


def test_upper_clip_of_its_own_and_no_dual_clip() -> None:
    old = torch.zeros(1, 2)
    log_probs = torch.tensor([[math.log(1.5), math.log(5.0)]])
    loss, _ = compute_policy_loss(log_probs, old, torch.tensor([[1.0, -1.0]]), torch.ones(1, 2), 0.2, 0.28)
    assert float(loss) == pytest.approx((-1.28 + 5.0) / 2, abs=1e-6)


def test_a_huge_log_ratio_stays_finite() -> None:
    loss, _ = compute_policy_loss(torch.tensor([[500.0]]), torch.zeros(1, 1), -torch.ones(1, 1), torch.ones(1, 1))
    assert float(loss) == pytest.approx(math.exp(20), rel=1e-6)


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("token-mean", (1 + 2 + 4) / 3),
        ("seq-mean-token-sum", (3 + 4) / 2),
        ("seq-mean-token-mean", (1.5 + 4) / 2),
        ("seq-mean-token-sum-norm", (3 + 4) / 2 / 3),
    ],
)
def test_aggregations_leave_out_padding_and_empty_rows(mode: AggregationMode, expected: float) -> None:
    losses = torch.tensor([[1.0, 2.0, 99.0], [4.0, 99.0, 99.0], [99.0, 99.0, 99.0]])
    assert float(aggregate(losses, MASK, mode)) == pytest.approx(expected, abs=1e-6)
    whole = Denominators.of(MASK)
    parts = aggregate(losses[:1], MASK[:1], mode, whole) + aggregate(losses[1:], MASK[1:], mode, whole)
    assert float(parts) == pytest.approx(expected, abs=1e-6)


def test_the_kl_term() -> None:
    log_probs, ref, mask = torch.tensor([[-1.0, 0.0]]), torch.tensor([[-1.5, 9.0]]), torch.tensor([[1.0, 0.0]])
    loss, value = compute_kl_penalty(log_probs, ref, mask, 0.1)
    expected = math.exp(-0.5) - 1 + 0.5
    assert float(value) == pytest.approx(expected, abs=1e-6) and float(loss) == pytest.approx(0.1 * expected, abs=1e-7)


def test_k3_is_clamped() -> None:
    _, value = compute_kl_penalty(torch.tensor([[-50.0]]), torch.zeros(1, 1), torch.ones(1, 1))
    assert float(value) == 10.0


def test_entropy_bonus_lowers_the_loss() -> None:
    bonus = compute_entropy_bonus(torch.tensor([[2.0, 4.0, 9.0], [3.0, 9.0, 9.0], [9.0, 9.0, 9.0]]), MASK, 0.01)
    assert float(bonus) == pytest.approx(-0.03, abs=1e-7)


def test_learning_rate_course() -> None:
    rates = [learning_rate(step, 8, 4.0, 2, "cosine", 0.5) for step in range(9)]
    assert rates[:3] == [2.0, 4.0, 4.0]
    assert rates[7] == pytest.approx(2.0)
    assert rates[8] == pytest.approx(2.0)
    assert rates[4] == pytest.approx(4.0 * (0.5 + 0.25 * (1 + math.cos(math.pi * 2 / 5))))
    # Towards 0 the last step still learns: HF's get_cosine_schedule_with_warmup, (1 + cos(pi (t - w) / (T - w))) / 2.
    to_zero = [learning_rate(step, 5, 1.0, 1, "cosine") for step in range(6)]
    assert to_zero == pytest.approx([1.0, 1.0, (1 + 0.5**0.5) / 2, 0.5, (1 - 0.5**0.5) / 2, 0.0], abs=1e-15)
    assert [learning_rate(step, 3, 1.0, 0, "constant") for step in range(3)] == [1.0, 1.0, 1.0]
