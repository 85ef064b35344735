"""Properties that hold for every input, and what is refused."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skill_ttrl.runs.statistics import (
    avg_at_k,
    bootstrap_interval,
    mean_pass_at_k,
    paired_bootstrap_difference,
    pass_at_k,
    vote_entropy,
    wilson_interval,
)

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


def test_pass_at_k_at_one_sample_is_the_average() -> None:
    correct = np.random.default_rng(0).random((20, 16)) < 0.3
    assert mean_pass_at_k(correct, 1) == pytest.approx(avg_at_k(correct))


@given(st.integers(1, 10_000).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))), st.floats(0.01, 0.999))
def test_wilson_holds_the_share_and_widens_with_confidence(numbers: tuple[int, int], confidence: float) -> None:
    n, successes = numbers
    low, high = wilson_interval(successes, n, confidence)
    assert 0.0 <= low <= successes / n <= high <= 1.0
    wider_low, wider_high = wilson_interval(successes, n, (1 + confidence) / 2)
    assert wider_low <= low + 1e-12 and wider_high >= high - 1e-12


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30), st.integers(0, 5))
def test_bootstrap_stays_within_the_values_and_repeats(values: list[float], seed: int) -> None:
    low, high = bootstrap_interval(values, samples=200, seed=seed)
    assert min(values) - 1e-9 <= low <= high <= max(values) + 1e-9
    assert (low, high) == bootstrap_interval(values, samples=200, seed=seed)


def test_bootstrap_takes_another_statistic_and_does_its_work_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    def median(draws: np.ndarray) -> np.ndarray:
        return np.asarray(np.median(draws, axis=-1))

    assert bootstrap_interval([5.0] * 9 + [100.0], median, samples=500) == (5.0, 5.0)
    whole = bootstrap_interval(range(50), samples=500, seed=1)
    monkeypatch.setattr("skill_ttrl.runs.statistics._CHUNK", 1000)
    assert bootstrap_interval(range(50), samples=500, seed=1) == whole


def test_pairing_removes_the_spread_between_problems() -> None:
    before = np.linspace(0, 0.9, 40)
    difference, low, high = paired_bootstrap_difference(before, before + 0.1)
    assert (difference, low, high) == pytest.approx((0.1, 0.1, 0.1))


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
        (lambda: bootstrap_interval([]), "one value a problem"),
        (lambda: bootstrap_interval([1.0], samples=0), "samples=0"),
        (lambda: paired_bootstrap_difference([1.0], [1.0, 2.0]), "same problems"),
        (lambda: vote_entropy([-1]), "negative"),
        (lambda: avg_at_k([]), "problems x samples"),
        (lambda: avg_at_k([1.0, 0.0]), r"shape \(2,\)"),
    ],
)
def test_what_is_refused(call, message) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=message):
        call()
