"""Statistics against values from elsewhere: scipy 1.17 (the call stands beside each) and published tables."""

from __future__ import annotations

import numpy as np
import pytest

from skill_ttrl.statistics import (
    mean_interval,
    paired_difference,
    paired_p_value,
    pass_at_k,
    repeats_interval,
    tango_interval,
    verdict,
    wilson_interval,
)
from skill_ttrl.voting import vote_entropy

BEFORE = [0.1, 0.4, 0.35, 0.8, 0.9, 0.2, 0.65, 0.7, 0.05, 0.55, 0.3, 1.0]


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


def test_entropy() -> None:
    assert vote_entropy([3, 2, 1]) == pytest.approx(1.0114042647073516, abs=1e-12)  # scipy.stats.entropy([3, 2, 1])
    assert vote_entropy([8, 8, 8, 8]) == pytest.approx(1.3862943611198906, abs=1e-12)


@pytest.mark.parametrize(
    ("plus", "minus", "n", "low", "high"),
    [
        # Fagerland, Lydersen, Laake, "Recommended tests and confidence intervals for paired binomial proportions", Statistics
        # in Medicine 33 (2014): airway hyper-responsiveness (Bentur et al. 2009), Tango's interval, three digits
        (1, 7, 21, -0.517, -0.026),
        # z = 1.959964: difference 0 of no discordant pair is +-z^2 / (n + z^2), Tango 1998, eq. 15 at b = c = 0
        (0, 0, 20, -0.1611, 0.1611),
    ],
)
def test_paired_binary_differences_have_tangos_interval(plus: int, minus: int, n: int, low: float, high: float) -> None:
    before = [0] * plus + [1] * minus + [1] * (n - plus - minus)
    after = [1] * plus + [0] * minus + [1] * (n - plus - minus)
    assert paired_difference(before, after)[0] == pytest.approx((plus - minus) / n)
    assert tango_interval(before, after) == pytest.approx([low, high], abs=5e-4)


@pytest.mark.parametrize(("plus", "minus", "n"), [(40, 20, 160), (9, 0, 30), (1, 0, 12), (3, 3, 50)])
def test_tangos_interval_as_its_closed_form_has_it(plus: int, minus: int, n: int) -> None:
    """The bound of the interval solves Tango's equation, with his closed form of the constrained estimate."""
    for bound in tango_interval([0] * plus + [1] * minus + [0] * (n - plus - minus), [1] * plus + [0] * (n - plus)):
        # Tango 1998, eq. 6: q is the estimate of P(-1) under the difference `bound`
        a, b, c = 2 * n, -plus - minus + (2 * n - plus + minus) * bound, -minus * bound * (1 - bound)
        q = (np.sqrt(b * b - 4 * a * c) - b) / (2 * a)
        statistic = (plus - minus - n * bound) / np.sqrt(n * (2 * q + bound * (1 - bound)))
        assert abs(statistic) == pytest.approx(1.959964, abs=1e-4)


def test_the_interval_of_clustered_values() -> None:
    # Of n = 12, mean 0.5 and squares that sum to 1.09 the effective size is 12 / ((1.09 x 12/11 + 0.5) / (12 x 0.25 + 0.5)) = n;
    # statsmodels 0.15: proportion_confint(0.5 * n, n, method="wilson")
    assert mean_interval(BEFORE) == pytest.approx((0.3170952832372328, 0.6829047167627672), abs=1e-12)


@pytest.mark.parametrize(
    ("gained", "lost", "n", "p_value", "judged"),
    [  # scipy.stats.binomtest(gained, gained + lost).pvalue
        (0, 4, 60, 0.125, "unclear"),
        (0, 5, 60, 0.0625, "unclear"),
        (0, 6, 60, 0.03125, "worse"),
        (9, 1, 60, 0.021484375, "better"),
        (40, 20, 160, 0.01348929373119186, "better"),
        (0, 0, 60, 1.0, "unclear"),
    ],
)
def test_the_exact_mcnemar_test_gives_the_verdict(gained: int, lost: int, n: int, p_value: float, judged: str) -> None:
    before = [0] * gained + [1] * lost + [1] * (n - gained - lost)
    after = [1] * gained + [0] * lost + [1] * (n - gained - lost)
    assert paired_p_value(before, after) == pytest.approx(p_value, abs=1e-12)
    assert verdict(paired_difference(before, after)[1:]) == judged


def test_repetitions() -> None:
    # scipy.stats.t.interval(0.95, 2, loc=0.9, scale=scipy.stats.sem([0.88, 0.9, 0.92]))
    assert repeats_interval([0.88, 0.9, 0.92]) == pytest.approx((0.8503172457649933, 0.9496827542350067), abs=1e-12)
