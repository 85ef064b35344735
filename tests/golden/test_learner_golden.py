"""Numbers worked out by hand for the learner's formulas."""

from __future__ import annotations

import math

import pytest
import torch

from skill_ttrl.rl.algorithms import compute_grpo_advantage, group_advantages
from skill_ttrl.rl.losses import compute_policy_loss
from skill_ttrl.rl.optim import learning_rate


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
