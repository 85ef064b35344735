"""Advantages shaped by votes, against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest

from skill_ttrl.rl.algorithms import group_advantages, shape_advantages
from skill_ttrl.types import VoteResult
from skill_ttrl.voting import Ballot, vote


def test_a_plain_vote_changes_nothing() -> None:
    found = vote("majority", Ballot(("1", "2")))
    values = [0.1, -0.30000001192092896]
    assert shape_advantages(found, values, group_advantages) == values


def test_weight_penalty_and_bonus_in_their_order() -> None:
    """0.5 (1 - 0.2) = 0.4 and 0.5 (-1 - 0.2) = -0.6; mean |A| = 0.5, so a bonus of 0.3 adds 0.15."""
    found = VoteResult("1", 0.5, (True, False), weight=0.5, penalty=0.2, bonus=(0.0, 0.3))
    assert shape_advantages(found, [1.0, -1.0], group_advantages) == pytest.approx([0.4, -0.45])


def test_restrain_adds_up_the_advantages_of_every_label() -> None:
    """Three samples a, one b: for label a the rewards 1 1 1 0 have mean 3/4 and deviation 1/2, so A = 1/2 and -3/2; for b the
    other way round. With w = (w_a, w_b): (w_a - w_b) / 2 for an a, -3 (w_a - w_b) / 2 for the b; all times u_x.
    """
    found = vote("restrain", Ballot(("a", "a", "b", "a"), base_majority_ratio=0.5))
    g = (math.exp(-0.125), math.exp(-1.125))  # shares 3/4 and 1/4
    gap = (g[0] - g[1]) / sum(g)
    u = math.exp(-0.5)
    assert shape_advantages(found, [0.0] * 4, group_advantages) == pytest.approx(
        [u * gap / 2, u * gap / 2, -3 * u * gap / 2, u * gap / 2], abs=1e-5
    )


def test_restrain_labels_that_were_not_kept_for_training_say_nothing() -> None:
    found = vote("restrain", Ballot(("a", "a", "b", "c"), base_majority_ratio=1.0)).select([0, 2])
    gap = found.label_weights[0] - found.label_weights[1]
    assert shape_advantages(found, [0.0] * 2, group_advantages) == pytest.approx(
        [gap / math.sqrt(2), -gap / math.sqrt(2)], abs=1e-5
    )


def test_restrains_penalty_is_all_there_is_of_a_weak_prompt() -> None:
    found = vote("restrain", Ballot(("a", "b", "c", None), base_majority_ratio=0.5), {"kappa": 0.5, "delta": 2})
    assert shape_advantages(found, [0.0] * 4, group_advantages) == pytest.approx([-2 * math.exp(-0.5)] * 4)
