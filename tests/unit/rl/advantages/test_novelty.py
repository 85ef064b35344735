"""Novelty and EVOL-RL's rewards: values worked out by hand, and laws."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skill_ttrl.rl.algorithms import cosine_similarity, evol_rl_rewards, ngram_similarity, novelty

SEQUENCES = st.lists(st.lists(st.integers(0, 3), max_size=8), min_size=1, max_size=7)


def test_ngrams_by_hand() -> None:
    """Bigrams 12 23 | 12 24 | 12 12 21: cosines 1/2, and 2/(sqrt 2 sqrt 5) for both of the others with the third."""
    found = ngram_similarity([[1, 2, 3], [1, 2, 4], [1, 2, 1, 2]], order=2)
    third = 2 / math.sqrt(10)
    assert found.ravel().tolist() == pytest.approx([1, 0.5, third, 0.5, 1, third, third, third, 1])


def test_short_and_empty_sequences() -> None:
    found = ngram_similarity([[1], [1], [1, 2, 3, 4], []], order=3)
    assert found[0].tolist() == pytest.approx([1, 1, 0, 0]) and found[3, 3] == 1


@given(SEQUENCES, st.integers(1, 4))
def test_similarity_is_symmetric_between_0_and_1_and_1_with_itself(sequences: list[list[int]], order: int) -> None:
    found = ngram_similarity(sequences, order)
    assert np.allclose(found, found.T) and found.min() >= 0 and found.max() <= 1
    assert np.allclose(np.diag(found), 1)


def test_opposite_vectors_are_not_similar() -> None:
    assert cosine_similarity(np.array([[1.0, 0.0], [-2.0, 0.0], [1.0, 1.0]])).tolist() == [
        pytest.approx(row) for row in ([1, 0, 0.5**0.5], [0, 1, 0], [0.5**0.5, 0, 1])
    ]


SIMILARITY = np.array([[1.0, 0.8, 0.4, 0.2], [0.8, 1.0, 0.6, 0.0], [0.4, 0.6, 1.0, 0.9], [0.2, 0.0, 0.9, 1.0]])


def test_the_mean_is_over_the_own_half_and_the_maximum_over_all() -> None:
    """Samples 0, 1, 2 agree: means 0.6, 0.7, 0.5 among themselves, maxima 0.8, 0.8, 0.9. Sample 3 is alone: mean 1.1/3, maximum 0.9."""
    found = novelty(SIMILARITY, np.array([True, True, True, False]))
    assert found.tolist() == pytest.approx([1 - 0.7, 1 - 0.75, 1 - 0.7, 1 - (1.1 / 3 + 0.9) / 2])


def test_rewards_by_hand() -> None:
    """Novelties 0.3 0.25 0.3 of those that agree fill the upper band; the one that does not is alone: the top of the lower one."""
    agrees, answered = np.array([True, True, True, False]), np.array([True] * 4)
    assert evol_rl_rewards(SIMILARITY, agrees, answered).tolist() == pytest.approx([1, 0.5, 1, -0.5])
    # Without an answer sample 3 is compared with none: novelties 0.3 0.25 1 - (0.5 + 0.6) / 2 = 0.45.
    without = evol_rl_rewards(SIMILARITY, agrees, np.array([True, True, True, False]))
    assert without.tolist() == pytest.approx([0.5 + 0.5 * 0.05 / 0.2, 0.5, 1, -1])


def test_equal_novelty_has_the_middle_of_its_band() -> None:
    same = np.ones((4, 4))
    found = evol_rl_rewards(same, np.array([True, True, False, False]), np.array([True] * 4))
    assert found.tolist() == pytest.approx([0.75, 0.75, -0.75, -0.75])


@pytest.mark.parametrize(("agrees", "expected"), [(True, [1, -1]), (False, [-0.5, -1])])
def test_a_single_answer(agrees: bool, expected: list[float]) -> None:
    found = evol_rl_rewards(np.eye(2), np.array([agrees, False]), np.array([True, False]))
    assert found.tolist() == expected
    assert evol_rl_rewards(np.eye(2), np.array([False, False]), np.array([False, False])).tolist() == [-1, -1]


@given(SEQUENCES, st.data())
def test_no_novelty_is_worth_more_than_agreement(sequences: list[list[int]], data: st.DataObject) -> None:
    size = len(sequences)
    flags = st.lists(st.booleans(), min_size=size, max_size=size)
    answered = np.array(data.draw(flags, label="answered"))
    agrees = np.array(data.draw(flags, label="agrees")) & answered
    found = evol_rl_rewards(ngram_similarity(sequences), agrees, answered)
    assert all(found[agrees] >= 0.5) and all(found[~agrees] <= -0.5) and all(found[~answered] == -1)
    order = np.random.default_rng(0).permutation(size)
    shuffled = evol_rl_rewards(ngram_similarity([sequences[k] for k in order]), agrees[order], answered[order])
    assert np.allclose(shuffled, found[order])
