"""Statistics against values that scipy 1.17 gave; the call stands beside each."""

from __future__ import annotations

import numpy as np
import pytest

from skill_ttrl.runs.statistics import (
    bootstrap_interval,
    mean_pass_at_k,
    paired_bootstrap_difference,
    pass_at_k,
    vote_entropy,
    wilson_interval,
)

BEFORE = [0.1, 0.4, 0.35, 0.8, 0.9, 0.2, 0.65, 0.7, 0.05, 0.55, 0.3, 1.0]
AFTER = [0.2, 0.45, 0.35, 0.9, 0.95, 0.4, 0.55, 0.85, 0.1, 0.65, 0.5, 1.0]


@pytest.mark.parametrize(
    ("successes", "n", "confidence", "low", "high"),
    [  # scipy.stats.binomtest(successes, n).proportion_ci(confidence, method="wilson")
        (0, 10, 0.95, 0.0, 0.27753279986288926),
        (10, 10, 0.95, 0.7224672001371109, 1.0),
        (7, 10, 0.95, 0.39677814746114526, 0.892208732593699),
        (123, 400, 0.99, 0.25161228786445194, 0.3696696009078722),
        (1, 3, 0.8, 0.10577563612172286, 0.6788173521696517),
    ],
)
def test_wilson(successes: int, n: int, confidence: float, low: float, high: float) -> None:
    assert wilson_interval(successes, n, confidence) == pytest.approx((low, high), abs=1e-12)


def test_pass_at_k() -> None:
    # 1 - scipy.stats.hypergeom(n, c, k).pmf(0)
    assert pass_at_k(200, 37, 10) == pytest.approx(0.8773745673794602, abs=1e-12)
    assert pass_at_k(32, 5, 8) == pytest.approx(0.7889321468298109, abs=1e-12)
    assert mean_pass_at_k([[1, 0, 0, 0], [0, 0, 0, 0]], 2) == pytest.approx(0.25)  # by hand: (1/2 + 0) / 2


def test_entropy() -> None:
    assert vote_entropy([3, 2, 1]) == pytest.approx(1.0114042647073516, abs=1e-12)  # scipy.stats.entropy([3, 2, 1])
    assert vote_entropy([8, 8, 8, 8]) == pytest.approx(1.3862943611198906, abs=1e-12)


def test_bootstrap() -> None:
    # scipy.stats.bootstrap((BEFORE,), np.mean, confidence_level=0.9, n_resamples=200000, method="percentile")
    low, high = bootstrap_interval(BEFORE, confidence=0.9, samples=200_000, seed=1)
    # means of twelve multiples of 0.05 lie 0.0042 apart, so two random streams may end one step from each other
    assert (low, high) == pytest.approx((0.35833, 0.64583), abs=0.0045)
    # the same call on AFTER - BEFORE with confidence_level=0.95
    difference, low, high = paired_bootstrap_difference(BEFORE, AFTER, samples=200_000, seed=1)
    assert difference == pytest.approx(np.mean(np.subtract(AFTER, BEFORE)))
    assert (low, high) == pytest.approx((0.02917, 0.12083), abs=0.0045)
