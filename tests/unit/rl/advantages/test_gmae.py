"""GMAE against enumeration: every context of a pool, every outcome of independent rewards, and values worked out by hand."""

from __future__ import annotations

import math
from collections import Counter
from itertools import combinations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skill_ttrl.rl.algorithms import group_contexts, poisson_binomial_advantages

SILENT = -1
POOLS = st.lists(st.integers(-1, 3), min_size=1, max_size=9)


def advantage(reward: bool, rewarded: int, size: int) -> float:
    """GRPO's advantage, as it is written: (r - mean) / population deviation, 0 where all rewards are equal."""
    if rewarded in (0, size):
        return 0.0
    mean = rewarded / size
    return (reward - mean) / math.sqrt(mean * (1 - mean))


def enumerated(pool: list[int], sample: int, size: int) -> tuple[float, float]:
    """(share of the contexts that reward the sample, mean advantage), by going through all of them and all of their ties."""
    rewards, advantages = [], []
    others = [place for place in range(len(pool)) if place != sample]
    for chosen in combinations(others, size - 1):
        counts = Counter(pool[place] for place in (sample, *chosen) if pool[place] != SILENT)
        tied = [answer for answer, votes in counts.items() if votes == max(counts.values())]
        outcomes = [(float(pool[sample] == winner), counts[winner]) for winner in tied] or [(0.0, 0)]
        rewards.append(sum(reward for reward, _ in outcomes) / len(outcomes))
        advantages.append(sum(advantage(bool(r), votes, size) for r, votes in outcomes) / len(outcomes))
    return sum(rewards) / len(rewards), sum(advantages) / len(advantages)


@given(POOLS, st.data())
def test_probabilities_and_advantages_are_those_of_all_contexts(pool: list[int], data: st.DataObject) -> None:
    size = data.draw(st.integers(1, len(pool)), label="group size")
    classes = sorted(set(pool) - {SILENT})
    sizes = [pool.count(answer) for answer in classes]
    found = group_contexts(sizes, pool.count(SILENT), size)
    for sample, answer in enumerate(pool):
        contexts = found[SILENT if answer == SILENT else classes.index(answer)]
        reward, mean = enumerated(pool, sample, size)
        assert contexts.reward == pytest.approx(reward, abs=1e-9)
        assert contexts.advantage == pytest.approx(mean, abs=1e-9)


@given(st.lists(st.sampled_from([0.0, 0.1, 0.5, 0.75, 1.0]), min_size=1, max_size=7))
def test_independent_rewards_are_those_of_all_outcomes(probabilities: list[float]) -> None:
    size = len(probabilities)
    expected = [0.0] * size
    for outcome in product([0, 1], repeat=size):
        weight = math.prod(p if reward else 1 - p for p, reward in zip(probabilities, outcome, strict=True))
        for place, reward in enumerate(outcome):
            expected[place] += weight * advantage(bool(reward), sum(outcome), size)
    assert poisson_binomial_advantages(probabilities).tolist() == pytest.approx(expected, abs=1e-9)


def test_by_hand() -> None:
    """Votes a a b, of which two are a group. An a meets the other a (1 of 2 contexts) and wins alone, or meets b and wins half the
    ties: p = 3/4; with a winner of one vote of two the advantages are 1 and -1, with two of two there is none. b meets an a in both
    contexts: p = 1/2.
    """
    a, b, _ = group_contexts([2, 1], 0, 2)
    assert (a.reward, b.reward) == pytest.approx((0.75, 0.5))
    assert (a.advantage, b.advantage) == pytest.approx((0.0, 0.0))
    # Independent: the group (a, b) with p = 3/4 and 1/2. Exactly one is rewarded: a with 3/8, b with 1/8.
    assert poisson_binomial_advantages([0.75, 0.5]).tolist() == pytest.approx([3 / 8 - 1 / 8, 1 / 8 - 3 / 8])


def test_one_context_is_grpo_with_the_population_deviation() -> None:
    """All that voted are trained on: 3 of 4 agree, so sqrt(1/3) and -sqrt(3)."""
    found = group_contexts([3, 1], 0, 4)
    assert [each.reward for each in found[:2]] == pytest.approx([1, 0])
    expected = [math.sqrt(1 / 3), -math.sqrt(3)]
    assert [each.advantage for each in found[:2]] == pytest.approx(expected)
    assert poisson_binomial_advantages([1, 1, 1, 0]).tolist() == pytest.approx([expected[0]] * 3 + [expected[1]])


def test_ttrls_sizes_are_quick_and_finite() -> None:
    """64 votes in classes of 1 to 10 and 9 without an answer, groups of 32."""
    found = group_contexts(list(range(10, 0, -1)), 9, 32)
    rewards = [each.reward for each in found]
    assert rewards == sorted(rewards, reverse=True) and rewards[-1] == 0
    expected_votes = [32 * size / 64 for size in range(10, 0, -1)]
    assert rewards[0] > 0.4 > rewards[1] and expected_votes[0] == 5


def test_a_group_that_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(ValueError, match="group of 4 cannot be drawn from 3 samples"):
        group_contexts([2, 1], 0, 4)
