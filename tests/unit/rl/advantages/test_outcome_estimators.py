"""Estimators from rewards and groups: values worked out by hand, and the cases at the edge of each."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from skill_ttrl.rl.algorithms import (
    decoupled_advantages,
    gpg_advantages,
    group_advantages,
    opo_advantages,
    passk_advantages,
    rloo_advantages,
)

PAIRS, GROUPS = [6.0, 3.0, 9.0, 12.0], ["a", "a", "b", "b"]
HALF = math.sqrt(0.5)


@pytest.mark.parametrize(
    ("scale", "expected"),
    [
        ("group", [HALF, -HALF, -HALF, HALF]),
        ("none", [1.5, -1.5, -1.5, 1.5]),
        ("mean", [1.5 / 4.5, -1.5 / 4.5, -1.5 / 10.5, 1.5 / 10.5]),
        # All rewards: mean 7.5, squares 2.25 + 20.25 + 2.25 + 20.25 = 45 over 3.
        ("batch", [1.5 / math.sqrt(15), -1.5 / math.sqrt(15), -1.5 / math.sqrt(15), 1.5 / math.sqrt(15)]),
    ],
)
def test_the_scale_is_the_divisor_of_the_centred_rewards(scale: Any, expected: list[float]) -> None:
    found = group_advantages(PAIRS, GROUPS, 1e-9, scale=scale).tolist()
    assert found == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("scale", "alone"), [("group", 3.0), ("none", 3.0), ("mean", 0.0), ("batch", 0.0)])
def test_a_group_of_one_and_an_all_equal_one(scale: Any, alone: float) -> None:
    found = group_advantages([3.0, 0.1, 0.1, 0.1, 0.0, 0.0], [0, 1, 1, 1, 2, 2], 1e-9, scale=scale).tolist()
    assert found[0] == pytest.approx(alone, abs=1e-6) and found[1:] == [0.0] * 5


def test_the_deviation_of_the_batch_lets_each_episode_weigh_the_same() -> None:
    # Episodes with means 1 | 0 | 2 | 0: the long one counts once. Deviation over all: mean 3/4, squares (1 + 9 + 25 + 9) / 16 = 11/4.
    rewards, episodes = [1.0, 1.0, 1.0, 0.0, 2.0, 0.0], [0, 0, 0, 1, 2, 3]
    found = group_advantages(rewards, [0, 0, 0, 0, 1, 1], 1e-9, episodes, "batch").tolist()
    deviation = math.sqrt(11 / 4 / 3)
    assert found == pytest.approx([0.5 / deviation] * 3 + [-0.5 / deviation, 1 / deviation, -1 / deviation], abs=1e-6)


def test_a_mean_of_negative_rewards_is_no_divisor() -> None:
    with pytest.raises(ValueError, match=r"at least 0, found -0\.5"):
        group_advantages([1.0, -0.5], [0, 0], scale="mean")


def test_rloo_takes_the_mean_of_the_others() -> None:
    assert rloo_advantages([*PAIRS, 1.0], [*GROUPS, "c"]).tolist() == [3.0, -3.0, -3.0, 3.0, 1.0]
    assert rloo_advantages([1.0, 0.0, 0.0, 0.0], [0] * 4).tolist() == pytest.approx([1.0] + [-1 / 3] * 3)
    assert rloo_advantages([0.1] * 7, [0] * 7).tolist() == [0.0] * 7


def test_rloo_over_steps_takes_the_mean_of_the_other_episodes() -> None:
    # Episodes (1, 0), (2), (0): the means of the others are 1, 1/4 and 5/4.
    found = rloo_advantages([1.0, 0.0, 2.0, 0.0], [0] * 4, [7, 7, 8, 9]).tolist()
    assert found == pytest.approx([0.0, -1.0, 1.75, -1.25])


def test_opo_weighs_the_baseline_by_length() -> None:
    # (2 * 1 + 6 * 0 + 2 * 1) / 10 = 0.4
    found = opo_advantages([1.0, 0.0, 1.0, 5.0], [0, 0, 0, 1], [2, 6, 2, 3]).tolist()
    assert found == pytest.approx([0.6, -0.4, 0.6, 5.0])
    assert opo_advantages([1.0, 1.0], [0, 0], [3, 9]).tolist() == [0.0, 0.0]
    assert opo_advantages([1.0, 0.0], [0, 0], [0, 0]).tolist() == [0.0, 0.0], "without tokens there is nothing to weigh"
    with pytest.raises(ValueError, match="one length for each of 2"):
        opo_advantages([1.0, 0.0], [0, 0], [3])


def test_pass_at_k_moves_the_only_best_one() -> None:
    found = passk_advantages([0.0, 1.0, 0.0, 1.0, 1.0, 4.0], ["a", "a", "a", "b", "b", "c"], 1e-9).tolist()
    assert found == pytest.approx([0.0, math.sqrt(3), 0.0, 0.0, 0.0, 0.0], abs=1e-6)
    assert passk_advantages([3.0, 1.0, 2.5], [0, 0, 0], scale=False).tolist() == [0.5, 0.0, 0.0]


def test_gpg_makes_up_for_rollouts_that_earned_nothing() -> None:
    found = gpg_advantages([1.0, 0.0, 0.0, 0.0, 2.0], [0, 0, 1, 1, 2], divisor=2.0).tolist()
    assert found == pytest.approx([0.625, -0.625, 0.0, 0.0, 2.5])  # alpha 5/2
    assert gpg_advantages([0.0, 0.0], [0, 0]).tolist() == [0.0, 0.0]


def test_each_of_several_rewards_is_normalised_alone() -> None:
    # NeMo-RL's fixture: correct [1, 1], integer [1, -1], format [1, 0]; before the normalisation over the batch.
    rows = [[1.0, 1.0], [1.0, -1.0], [1.0, 0.0]]
    assert decoupled_advantages(rows, [1.0] * 3, [0, 0], 1e-9).tolist() == pytest.approx(
        [2 * HALF, -2 * HALF], abs=1e-6
    )
    assert decoupled_advantages(rows, [1, 1, 0.5], [0, 0], 1e-9).tolist() == pytest.approx([1.5 * HALF, -1.5 * HALF])
    assert torch.equal(decoupled_advantages([PAIRS], [1.0], GROUPS), group_advantages(PAIRS, GROUPS))


@pytest.mark.parametrize(
    "estimate",
    [group_advantages, rloo_advantages, passk_advantages, gpg_advantages],
    ids=lambda each: str(each.__name__),
)
def test_order_of_groups_and_shift_of_rewards(estimate: Any) -> None:
    rewards, groups = [1.0, 0.0, 0.25, 1.0, 0.5, 0.0], [0, 1, 0, 1, 0, 1]
    order = [4, 0, 5, 3, 2, 1]
    found = estimate(rewards, groups)
    assert torch.allclose(estimate([rewards[i] for i in order], [groups[i] for i in order]), found[order])
    if estimate is not gpg_advantages:  # its factor counts rewards of 0
        assert torch.allclose(estimate([each + 7.0 for each in rewards], groups), found, atol=1e-6)
    with pytest.raises(ValueError, match="one group id for each reward"):
        estimate([1.0, 0.0], [0])
