"""SCRL's labels and rewards, worked out by hand from its rules."""

from __future__ import annotations

import pytest

from skill_ttrl.rl.algorithms import scrl_labels, scrl_reward

SHARES = [0.5, 0.25, 0.125, 0.0625]
ENTROPIES = [0.2, 0.4, 0.6, 0.1]
MEAN = 0.3


def test_a_clear_vote_has_a_positive_label_and_rare_unsure_answers_are_negative() -> None:
    labels = scrl_labels(SHARES, ENTROPIES, MEAN)
    assert labels.positive == 0 and labels.negatives == {2}, "the fourth answer is rare, but surer than the prompt"


@pytest.mark.parametrize(
    ("shares", "positive"),
    [([0.5], 0), ([0.49, 0.1], None), ([0.55, 0.4000001], None), ([0.56, 0.4], 0), ([], None)],
)
def test_share_and_margin_decide_on_the_positive_label(shares: list[float], positive: int | None) -> None:
    assert scrl_labels(shares, [1.0] * len(shares), 1.0).positive == positive


def test_the_margin_itself_is_not_enough() -> None:
    assert scrl_labels([0.625, 0.375], [1.0, 1.0], 1.0, margin=0.25).positive is None
    assert scrl_labels([0.625, 0.375], [1.0, 1.0], 1.0, margin=0.2).positive == 0


def test_where_nothing_is_clear_only_negatives_are_left() -> None:
    labels = scrl_labels([0.3, 0.1, 0.1], [1.0, 2.0, 0.5], 1.0)
    assert labels.positive is None and labels.negatives == {1}


def test_rewards_of_both_kinds() -> None:
    labels = scrl_labels(SHARES, ENTROPIES, MEAN)
    seen = (labels, SHARES, ENTROPIES, MEAN)
    assert [scrl_reward(place, *seen) for place in (0, 1, 2, 3, -1)] == [1, 0, -1, 0, -1]
    found = [scrl_reward(place, *seen, continuous=True) for place in (0, 1, 2, 3, -1)]
    # p - 0.1 (H - mean H), -0.1 (H - mean H), -(0.15 - p) - 0.1 (H - mean H), and so on.
    assert found == pytest.approx([0.5 + 0.01, -0.01, -0.025 - 0.03, 0.02, -1])
    assert scrl_reward(-1, *seen, no_answer=0.0) == 0
