"""Properties that hold for every input, and what is refused."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skill_ttrl.statistics import mean_interval, paired_difference, pass_at_k, times_as_many, wilson_interval
from skill_ttrl.voting import vote_entropy

COUNTS = st.integers(1, 300).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n)))


@given(COUNTS)
def test_pass_at_k_is_a_probability_that_grows_with_k_and_c(numbers: tuple[int, int, int]) -> None:
    n, c, k = numbers
    value = pass_at_k(n, c, k)
    assert 0.0 <= value <= 1.0
    assert pass_at_k(n, c, 1) == pytest.approx(c / n)
    if k < n:
        assert pass_at_k(n, c, k + 1) >= value - 1e-12
    if c < n:
        assert pass_at_k(n, c + 1, k) >= value - 1e-12


@pytest.mark.parametrize("n", [1, 2, 5, 7])
def test_pass_at_k_equals_counting_every_draw(n: int) -> None:
    for c in range(n + 1):
        for k in range(1, n + 1):
            draws = list(combinations([True] * c + [False] * (n - c), k))
            assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, draws)) / len(draws), abs=1e-12)


@given(st.integers(1, 10_000).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))), st.floats(0.01, 0.999))
def test_wilson_holds_the_share_and_widens_with_confidence(numbers: tuple[int, int], confidence: float) -> None:
    n, successes = numbers
    low, high = wilson_interval(successes, n, confidence)
    assert 0.0 <= low <= successes / n <= high <= 1.0
    wider_low, wider_high = wilson_interval(successes, n, (1 + confidence) / 2)
    assert wider_low <= low + 1e-12 and wider_high >= high - 1e-12


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30), st.floats(0.5, 0.99))
def test_an_interval_holds_the_mean_has_a_width_and_widens_with_confidence(
    values: list[float], confidence: float
) -> None:
    low, high = mean_interval(values, confidence=confidence)
    assert 0.0 <= low <= np.mean(values) + 1e-9 and np.mean(values) - 1e-9 <= high <= 1.0
    assert high - low > 0.01, "no number of problems says everything"
    wider_low, wider_high = mean_interval(values, confidence=(1 + confidence) / 2)
    assert wider_low <= low + 1e-8 and wider_high >= high - 1e-8


@given(st.integers(1, 60).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))))
def test_of_zeros_and_ones_it_is_wilsons(numbers: tuple[int, int]) -> None:
    n, successes = numbers
    values = [1.0] * successes + [0.0] * (n - successes)
    assert mean_interval(values) == pytest.approx(wilson_interval(successes, n), abs=1e-8)


def test_no_interval_is_a_point() -> None:
    """0 of 20, all of 20, and no change at all: a bootstrap would print [0, 0], [1, 1] and [0, 0]."""
    assert mean_interval([0.0] * 20) == pytest.approx((0.0, 0.1611), abs=1e-4)
    assert mean_interval([1.0] * 20) == pytest.approx((0.8389, 1.0), abs=1e-4)
    assert paired_difference([1.0] * 20, [1.0] * 20) == pytest.approx((0.0, -0.1611, 0.1611), abs=1e-4)
    _, low, high = paired_difference([0.5] * 20, [0.5] * 20)
    assert (low, high) == pytest.approx((-0.0676, 0.0676), abs=1e-4), "many samples of a problem tell more than one"


@pytest.mark.parametrize("samples", [1, 8])
@pytest.mark.parametrize("right", [0.02, 0.5, 0.95])
@pytest.mark.parametrize("alike", [0.1, 0.8])
def test_statistics_hold_the_truth_as_often_as_they_say(right: float, alike: float, samples: int) -> None:
    """Simulated: 64 problems, `samples` of each, in which problems differ (intraclass correlation `alike`).

    A percentile bootstrap over problems holds the truth in 0.74 (one sample, 0.02) to 0.96 of such draws.
    """
    problems, draws = 64, 200
    scale = 1 / alike - 1
    random = np.random.default_rng(0)
    rates = random.beta(right * scale, (1 - right) * scale, size=(draws, problems))
    shares = random.binomial(samples, rates) / samples
    found = [mean_interval(each) for each in shares]
    assert np.mean([low <= right <= high for low, high in found]) >= 0.92  # 0.95 less two standard errors


@pytest.mark.parametrize(("before", "after"), [(0.02, 0.02), (0.6, 0.95), (0.95, 0.97)])
@pytest.mark.parametrize("samples", [1, 8])
def test_statistics_of_changes_hold_the_truth_as_often_as_they_say(before: float, after: float, samples: int) -> None:
    """Simulated: 30 problems before and after. A bootstrap holds the truth in 0.6 of the draws near 1."""
    problems, draws = 30, 200
    random = np.random.default_rng(1)
    rates = random.beta(2 * before, 2 * (1 - before), size=(2, draws, problems))
    rates[1] = random.beta(2 * after, 2 * (1 - after), size=(draws, problems))
    shares = random.binomial(samples, rates) / samples
    found = [paired_difference(*pair)[1:] for pair in zip(*shares, strict=True)]
    assert np.mean([low <= after - before <= high for low, high in found]) >= 0.92


def test_as_many_problems_as_are_said_to_be_needed_show_a_difference_as_often_as_is_said() -> None:
    first = np.repeat([-1, 0, 1], [25, 45, 30])  # of 100 pairs: lost, equal, gained
    difference, low, high = paired_difference(first < 0, first > 0)
    problems = round(first.size * times_as_many(difference, (low, high)))
    draws = np.random.default_rng(1).choice(first, size=(60, problems))
    assert 0.7 <= np.mean([paired_difference(drawn < 0, drawn > 0)[1] > 0 for drawn in draws]) <= 0.9


@given(st.lists(st.integers(0, 50), max_size=12))
def test_entropy_bounds(counts: list[int]) -> None:
    value = vote_entropy(counts)
    voted = sum(count > 0 for count in counts)
    assert 0.0 <= value <= math.log(max(voted, 1)) + 1e-12
    assert value == pytest.approx(vote_entropy([count * 7 for count in reversed(counts)]))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: pass_at_k(4, 5, 1), "n=4, c=5, k=1"),
        (lambda: pass_at_k(4, 2, 5), "k=5"),
        (lambda: wilson_interval(3, 2), "n=2, successes=3"),
        (lambda: wilson_interval(0, 0), "n=0"),
        (lambda: wilson_interval(1, 2, 1.0), "confidence level lies between 0 and 1"),
        (lambda: mean_interval([]), "one value a problem"),
        (lambda: mean_interval([0.5, 1.5]), "from 0 to 1, found 0.5 to 1.5"),
        (lambda: mean_interval([math.nan]), "found nan"),
        (lambda: paired_difference([1.0], [1.0, 0.0]), "same problems"),
    ],
)
def test_what_is_refused(call, message) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=message):
        call()
