"""All statistics: accuracies over samples, intervals, paired tests, and the verdict on every difference that is reported.

Pure functions over numpy arrays. Shape suffixes: P problems, K samples of each. Problems are the unit that was drawn,
so intervals and tests are of means over problems, never over single samples.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

Interval = tuple[float, float]
"""(low, high)."""

_ROUNDING = 1e-9  # by which a mean of values may lie outside their bounds
_DOUBT = 0.5  # variance of the problems that are assumed besides: those whose samples all come out alike
_HALVINGS = 60
_GRID = 64  # most samples a problem for which the null distribution is exact: differences are multiples of 1 / samples
_EXACT_WORK = 200_000_000  # cells of the exact distribution, beyond which flips are drawn
_FLIPS = 9_999  # sign flips that are drawn where there is no exact distribution
_BATCH = 4_000_000  # of them held in memory at once, times problems
PAIRED_TEST = "exact McNemar test (sign-flip test where a problem has several samples)"
"""Names the test behind the verdicts on paired differences."""
Verdict = Literal["better", "worse", "unclear"]


def avg_at_k(correct_P_K: ArrayLike) -> float:
    """Mean accuracy of single samples (avg@k, also written mean@k), in [0, 1]; of each it is said if it is right, one row a problem."""
    return float(np.asarray(correct_P_K, dtype=np.float64).mean())


def pass_at_k(n: int, c: int, k: int) -> float:
    """Unbiased estimate of the chance that at least one of `k` samples is right.

    1 - C(n-c, k) / C(n, k), as the product of Chen et al. 2021 (arXiv 2107.03374, eq. 1), which never forms a large
    binomial. Of `n` samples that were drawn `c`, 0..n, are right; the imagined draw has the size `k`, 1..n.

    Raises:
        ValueError: a number is out of its range.
    """
    if not (0 <= c <= n and 1 <= k <= n):
        raise ValueError(f"pass_at_k needs 0 <= c <= n and 1 <= k <= n, found n={n}, c={c}, k={k}.")
    if n - c < k:
        return 1.0
    return float(1.0 - np.prod(1.0 - k / np.arange(n - c + 1, n + 1)))


def wilson_interval(successes: int, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Score interval of a proportion (Wilson 1927); sensible at 0 and at n, unlike the normal one.

    Args:
        successes: 0..n.
        n: Trials, at least 1, independent of each other.
        confidence: Level in (0, 1).

    Returns:
        (low, high) in [0, 1], with `successes / n` between them.

    Raises:
        ValueError: a number is out of its range.
    """
    if n < 1 or not 0 <= successes <= n:
        raise ValueError(f"wilson_interval needs n >= 1 and 0 <= successes <= n, found n={n}, successes={successes}.")
    return _score_interval(successes / n, n, confidence)


def _score_interval(share: float, n: float, confidence: float) -> Interval:
    z = _z(confidence)
    scale = 1 + z * z / n
    center = (share + z * z / (2 * n)) / scale
    half = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n)) / scale
    # At the ends the bound is the share itself; rounding must not move it past.
    return (0.0 if share == 0 else min(share, center - half), 1.0 if share == 1 else max(share, center + half))


def mean_interval(values_P: ArrayLike, *, confidence: float = 0.95) -> Interval:
    """Score interval of the mean of values in [0, 1], one a problem, drawn independently.

    Wilson's interval for as many trials as the values are worth, as is usual where trials come in clusters (Franco, Little,
    Louis & Slud 2019, doi:10.1093/jssam/smy019): see `_worth`. Of zeros and ones it is Wilson's. It has a width where all
    values are equal, where a bootstrap has none.

    Args:
        values_P: One value a problem, e.g. the share of its samples that are right.
        confidence: Level in (0, 1).

    Returns:
        (low, high) in [0, 1], with the mean between them.

    Raises:
        ValueError: there are no values, one lies outside [0, 1], or the level is out of its range.
    """
    values = _shares(values_P)
    mean = float(values.mean())
    return _score_interval(mean, _worth(values, mean * (1 - mean)), confidence)


def paired_difference(
    before_P: ArrayLike, after_P: ArrayLike, *, confidence: float = 0.95
) -> tuple[float, float, float]:
    """Mean difference `after - before` over the same problems, with its interval.

    Pairing removes the spread between easy and hard problems, which two separate intervals would both carry. The interval is
    `tango_interval`, which approximates: with few discordant problems it excludes 0 too soon. So it is widened to 0 where
    `paired_p_value` does not reject; 0 lies outside only where both agree, and `verdict` reads that off.

    Args:
        before_P: One value in [0, 1] a problem.
        after_P: The same problems in the same order.
        confidence: Level in (0, 1).

    Returns:
        (difference, low, high) in [-1, 1].

    Raises:
        ValueError: the two do not have one value in [0, 1] for the same problems each.
    """
    low, high = tango_interval(before_P, after_P, confidence=confidence)
    if not low <= 0 <= high and paired_p_value(before_P, after_P) > 1 - confidence + _ROUNDING:
        low, high = min(low, 0.0), max(high, 0.0)
    return _paired(before_P, after_P)[0], low, high


def tango_interval(before_P: ArrayLike, after_P: ArrayLike, *, confidence: float = 0.95) -> Interval:
    """Score interval of the mean difference `after - before` (Tango, Statistics in Medicine 17, 1998).

    It is for as many pairs as the problems are worth (`_worth`); with one sample a problem it is Tango's own. It has a width where
    nothing changed, where a bootstrap has none.
    """
    difference, discordant, pairs = _paired(before_P, after_P)
    low, high = (_tango_bound(difference, discordant, pairs, end, _z(confidence)) for end in (-1.0, 1.0))
    return low, high


def verdict(bounds: Interval) -> Verdict:
    """The verdict on a difference by its interval: "unclear" where that contains 0."""
    low, high = bounds
    return "better" if low > 0 else "worse" if high < 0 else "unclear"


POWER = 0.8
"""Statistical power that `times_as_many` aims at."""


def times_as_many(difference: float, bounds: Interval, repeats: int | None = None) -> float:
    """Roughly how many times as many problems would show a true difference of this size in `POWER` of all comparisons.

    From the width of its 95% interval, which shrinks with the root of their number. Of `repeats` of a whole experiment, such as
    seeds, the interval is Student's.
    """
    z = _z(0.95)
    wide = bounds[1] - difference if difference < 0 else difference - bounds[0]
    error = wide / (z if repeats is None else student(0.95, repeats - 1))
    return ((z + NormalDist().inv_cdf(POWER)) * error / abs(difference)) ** 2


def paired_p_value(before_P: ArrayLike, after_P: ArrayLike) -> float:
    """Two-sided p-value of "no difference" over the same problems: the exact McNemar test where each is right or wrong, and its
    generalisation to several samples a problem, the sign-flip test (`sign_flip_p_value`).
    """
    differences = _shares(after_P) - _shares(before_P)
    return min(1.0, 2 * min(sign_flip_p_value(differences), sign_flip_p_value(-differences)))


def sign_flip_p_value(differences_P: ArrayLike, *, seed: int = 0) -> float:
    """One-sided p-value of "the mean is not above 0": the share of all sign flips whose sum is at least the observed one.

    Exact where the differences are multiples of 1/d, d up to 64 (and the problems not too many); else of 9,999 drawn flips and the
    observed signs. It falls, or stays, as any difference grows.
    """
    differences = np.asarray(differences_P, dtype=np.float64)
    steps = _on_grid(differences)
    if steps is not None and int(np.abs(steps).sum()) * np.count_nonzero(steps) <= _EXACT_WORK:
        return _exact_share(steps)
    random, reached = np.random.default_rng(seed), 0
    size = max(1, _BATCH // differences.size)
    for first in range(0, _FLIPS, size):
        flipped = random.integers(0, 2, size=(min(size, _FLIPS - first), differences.size)).astype(bool)
        # The sum after a flip is the observed one less twice the sum over what is flipped.
        reached += int((np.where(flipped, differences, 0.0).sum(axis=1) <= _ROUNDING).sum())
    return (1 + reached) / (1 + _FLIPS)


def _on_grid(differences: NDArray[np.float64]) -> NDArray[np.int64] | None:
    """The differences in steps of 1/d, for the least d up to `_GRID` that gives whole numbers; None where none does."""
    for size in range(1, _GRID + 1):
        steps = differences * size
        if np.abs(steps - np.round(steps)).max(initial=0.0) <= _ROUNDING * size:
            return np.round(steps).astype(np.int64)
    return None


def _exact_share(steps: NDArray[np.int64]) -> float:
    """Chance that a random choice of the differences sums to 0 or less: flipping these, the sum is at least the observed one."""
    low, high = int(steps[steps < 0].sum()), int(steps[steps > 0].sum())
    chance = np.zeros(high - low + 1)
    chance[-low] = 1.0
    for step in steps[steps != 0]:
        moved = np.zeros_like(chance)
        if step > 0:
            moved[step:] = chance[:-step]
        else:
            moved[:step] = chance[-step:]
        chance = 0.5 * (chance + moved)
    return float(min(1.0, chance[: 1 - low].sum()))


def paired_score_p_value(before_P: ArrayLike, after_P: ArrayLike, assumed: float) -> float:
    """One-sided p-value of Tango's score test of "the mean difference `after - before` is `assumed` or less".

    The test that `tango_interval` inverts: p is at most (1 - confidence) / 2 where the lower end of its interval is at least
    `assumed`, in (-1, 1).

    Raises:
        ValueError: as `paired_difference`.
    """
    difference, discordant, pairs = _paired(before_P, after_P)
    distance, variance = _tango_score(difference, discordant, pairs, assumed)
    if variance <= 0:
        return 1.0 if distance <= 0 else 0.0
    return NormalDist().cdf(-distance / math.sqrt(variance))


def _paired(before_P: ArrayLike, after_P: ArrayLike) -> tuple[float, float, float]:
    """Mean difference, share of discordant pairs, and the number of pairs that the problems are worth."""
    before, after = _shares(before_P), _shares(after_P)
    if before.shape != after.shape:
        raise ValueError(f"A paired difference needs the same problems, found shapes {before.shape} and {after.shape}.")
    difference = float((after - before).mean())
    # Of a sample before and one after: the chance that exactly one of them is right.
    discordant = float((before * (1 - after) + after * (1 - before)).mean())
    return difference, discordant, _worth(after - before, discordant - difference**2)


def repeats_interval(
    values: ArrayLike, *, confidence: float = 0.95, within: Interval = (-math.inf, math.inf)
) -> Interval | None:
    """Student's interval of the mean over repetitions of a whole experiment, such as seeds; `within`: where the values can lie.

    Returns:
        (low, high); None of fewer than two values, and where all are equal: they say nothing of how far others would lie.
    """
    found = np.asarray(values, dtype=np.float64)
    if found.size < 2 or float(np.ptp(found)) == 0.0:
        return None
    half = student(confidence, found.size - 1) * float(found.std(ddof=1)) / math.sqrt(found.size)
    return max(within[0], float(found.mean()) - half), min(within[1], float(found.mean()) + half)


def student(confidence: float, freedom: int) -> float:
    """The t with P(|T| < t) = `confidence`."""
    from scipy.special import stdtrit  # a quarter of a second that few calls need

    _z(confidence)  # the level is one
    return float(stdtrit(freedom, 0.5 + confidence / 2))


def _worth(values: NDArray[np.float64], variance: float) -> float:
    """Independent trials that one value a problem is worth: at least the problems.

    That is problems x `variance` of a single trial / variance of the values. Where a problem was tried once the two are
    equal. Near 0 and 1 the second is known badly (all values may be equal), so to both sums is added what two further
    problems would add, one all right and one all wrong: without it an interval has no width there, with more it is too wide
    elsewhere. Simulated in tests/unit/test_statistics.py.
    """
    problems = values.size
    if problems == 1:
        return 1.0
    found = float(((values - values.mean()) ** 2).sum()) * problems / (problems - 1)
    return problems / min(1.0, (found + _DOUBT) / (problems * variance + _DOUBT))


def _tango_score(difference: float, discordant: float, pairs: float, assumed: float) -> tuple[float, float]:
    """Distance of the pairs' difference from the `assumed` one, and the variance of it (Tango's constrained estimate)."""
    gained, lost = pairs * (discordant + difference) / 2, pairs * (discordant - difference) / 2
    linear = (2 * pairs - gained + lost) * assumed - gained - lost
    root = math.sqrt(max(0.0, linear**2 + 8 * pairs * lost * assumed * (1 - assumed)))
    likeliest = (root - linear) / (4 * pairs)  # of a loss, where the difference is the assumed one
    return gained - lost - pairs * assumed, pairs * max(0.0, 2 * likeliest + assumed * (1 - assumed))


def _tango_bound(difference: float, discordant: float, pairs: float, end: float, z: float) -> float:
    """The difference nearest to `end` (-1 or 1) that Tango's test does not reject, by halving."""

    def accepted(assumed: float) -> bool:
        distance, variance = _tango_score(difference, discordant, pairs, assumed)
        return distance**2 <= z * z * variance

    if accepted(end):
        return end
    inside, outside = difference, end
    for _ in range(_HALVINGS):
        middle = (inside + outside) / 2
        inside, outside = (middle, outside) if accepted(middle) else (inside, middle)
    return inside


def _z(confidence: float) -> float:
    if not 0 < confidence < 1:
        raise ValueError(f"A confidence level lies between 0 and 1, found {confidence}.")
    return NormalDist().inv_cdf(0.5 + confidence / 2)


def _shares(values_P: ArrayLike) -> NDArray[np.float64]:
    values = np.asarray(values_P, dtype=np.float64)
    if values.ndim != 1 or values.size == 0:
        raise ValueError(f"An interval needs one value a problem, found shape {values.shape}.")
    if not (values.min() >= -_ROUNDING and values.max() <= 1 + _ROUNDING):  # NaN fails too
        raise ValueError(f"An interval needs values from 0 to 1, found {values.min():g} to {values.max():g}.")
    return np.clip(values, 0.0, 1.0)
