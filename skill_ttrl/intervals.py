"""Statistics of an evaluation: accuracies over samples, intervals, and how much the answers agree.

Pure functions over numpy arrays. Shape suffixes: P problems, K samples of each. Problems are the unit that was drawn,
so intervals are of means over problems, never over single samples.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Interval = tuple[float, float]
"""(low, high)."""

_ROUNDING = 1e-9  # by which a mean of values may lie outside their bounds
_DOUBT = 0.5  # variance of the problems that are assumed besides: those whose samples all come out alike
_HALVINGS = 60
_PROBLEMS_WORTH = 2  # degrees of freedom of the variance from the problems, in the pool with that of the repetitions


def avg_at_k(correct_P_K: ArrayLike) -> float:
    """Mean accuracy of single samples (avg@k, also written mean@k), in [0, 1]; of each it is said if it is right, one row a problem.

    Raises:
        ValueError: the matrix is empty or has another shape.
    """
    return float(_matrix(correct_P_K).mean())


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


def mean_pass_at_k(correct_P_K: ArrayLike, k: int) -> float:
    """`pass_at_k` averaged over problems, K samples of each.

    Raises:
        ValueError: the matrix is empty, or `k` is not in 1..K.
    """
    correct = _matrix(correct_P_K)
    samples = correct.shape[1]
    return float(np.mean([pass_at_k(samples, int(row.sum()), k) for row in correct]))


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
    """Mean difference `after - before` over the same problems, with its score interval.

    Pairing removes the spread between easy and hard problems, which two separate intervals would both carry. The interval is
    Tango's (Statistics in Medicine 17, 1998) for as many pairs as the problems are worth (`_worth`); with one sample a
    problem it is Tango's own. It has a width where nothing changed, where a bootstrap has none.

    Args:
        before_P: One value in [0, 1] a problem.
        after_P: The same problems in the same order.
        confidence: Level in (0, 1).

    Returns:
        (difference, low, high) in [-1, 1].

    Raises:
        ValueError: the two do not have one value in [0, 1] for the same problems each.
    """
    difference, discordant, pairs = _paired(before_P, after_P)
    low, high = (_tango_bound(difference, discordant, pairs, end, _z(confidence)) for end in (-1.0, 1.0))
    return difference, low, high


def paired_score_p_value(before_P: ArrayLike, after_P: ArrayLike, assumed: float) -> float:
    """One-sided p-value of Tango's score test of "the mean difference `after - before` is `assumed` or less".

    The test that `paired_difference` inverts: p is at most (1 - confidence) / 2 where the lower end of its interval is at least
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


def unpaired_difference(
    before_P: ArrayLike, after_P: ArrayLike, *, confidence: float = 0.95
) -> tuple[float, float, float]:
    """Difference of two means over different problems, with its interval.

    Newcombe's square-and-add of the two score intervals (Statistics in Medicine 17, 1998, 873-890, method 10).

    Returns:
        (difference, low, high) in [-1, 1].

    Raises:
        ValueError: see `mean_interval`.
    """
    before, after = _shares(before_P), _shares(after_P)
    one, other = float(before.mean()), float(after.mean())
    (one_low, one_high), (low, high) = (mean_interval(each, confidence=confidence) for each in (before, after))
    difference = other - one
    return (
        difference,
        difference - math.hypot(other - low, one_high - one),
        difference + math.hypot(high - other, one - one_low),
    )


def repeats_interval(values: ArrayLike, *, confidence: float = 0.95) -> Interval | None:
    """Student's interval of the mean over repetitions of a whole experiment, such as seeds.

    Returns:
        (low, high); None of fewer than two values, and where all are equal: they say nothing of how far others would lie.
    """
    found = np.asarray(values, dtype=np.float64)
    if found.size < 2 or float(np.ptp(found)) == 0.0:
        return None
    half = _student_quantile(confidence, found.size - 1) * float(found.std(ddof=1)) / math.sqrt(found.size)
    return float(found.mean()) - half, float(found.mean()) + half


def prediction_interval(values: ArrayLike, intervals: Sequence[Interval], *, confidence: float = 0.95) -> Interval:
    """Interval of one further repetition of a whole experiment on the same problems, such as training with another seed.

    Student's, around the mean of the repetitions. Few of them say little of their own spread: two or three may agree by chance. So
    the variance is pooled with the one that the problems alone would give, which counts as `_PROBLEMS_WORTH` degrees of freedom
    (moderated t, Smyth 2004, doi:10.2202/1544-6115.1027). That one takes the problems for drawn anew, and they are the same: where
    seeds matter little the interval is too wide rather than too narrow. Simulated in tests/unit/test_intervals.py.

    Args:
        values: One value a repetition.
        intervals: Interval of each over its problems, at the level 0.95.
        confidence: Level of the result, in (0, 1).

    Returns:
        (low, high), not cut off at the ends of a scale.

    Raises:
        ValueError: there are no values, or not as many intervals.
    """
    found = np.asarray(values, dtype=np.float64)
    if found.size == 0 or found.size != len(intervals):
        raise ValueError(
            f"Found {found.size} values and {len(intervals)} intervals; one of each a repetition is needed."
        )
    by_problems = float(np.mean([((high - low) / (2 * _z(0.95))) ** 2 for low, high in intervals]))
    freedom = found.size - 1 + _PROBLEMS_WORTH
    pooled = (_PROBLEMS_WORTH * by_problems + float(((found - found.mean()) ** 2).sum())) / freedom
    half = _student_quantile(confidence, freedom) * math.sqrt(pooled * (1 + 1 / found.size))
    return float(found.mean()) - half, float(found.mean()) + half


def _student_quantile(confidence: float, freedom: int) -> float:
    """The t with P(|T| < t) = `confidence`, by halving; the sum is Abramowitz & Stegun's 26.7.3 and 26.7.4."""
    _z(confidence)  # the level is one

    def inside(t: float) -> float:
        angle = math.atan(t / math.sqrt(freedom))
        cosine, odd = math.cos(angle), freedom % 2
        term = cosine if odd else 1.0
        total = 0.0
        for step in range(freedom // 2):
            total += term
            term *= cosine**2 * (2 * step + 1 + odd) / (2 * step + 2 + odd)
        return 2 / math.pi * (angle + math.sin(angle) * total) if odd else math.sin(angle) * total

    low, high = 0.0, 1.0
    while inside(high) < confidence:
        high *= 2
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if inside(middle) < confidence else (low, middle)
    return high


def _worth(values: NDArray[np.float64], variance: float) -> float:
    """Independent trials that one value a problem is worth: at least the problems.

    That is problems x `variance` of a single trial / variance of the values. Where a problem was tried once the two are
    equal. Near 0 and 1 the second is known badly (all values may be equal), so to both sums is added what two further
    problems would add, one all right and one all wrong: without it an interval has no width there, with more it is too wide
    elsewhere. Simulated in tests/unit/test_intervals.py.
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


def vote_entropy(counts: Iterable[int]) -> float:
    """Shannon entropy (nats) of a distribution given as votes for each answer; 0 when all agree or nobody voted.

    Raises:
        ValueError: a count is negative.
    """
    votes = np.asarray(list(counts), dtype=np.float64)
    if (votes < 0).any():
        raise ValueError(f"Votes cannot be negative, found {votes.min():g}.")
    votes = votes[votes > 0]
    if votes.size <= 1:
        return 0.0
    shares = votes / votes.sum()
    return float(-(shares * np.log(shares)).sum())


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


def _matrix(correct: Any) -> NDArray[np.float64]:
    matrix = np.asarray(correct, dtype=np.float64)
    if matrix.ndim != 2 or matrix.size == 0:
        raise ValueError(f"Correctness is a matrix of problems x samples, found shape {matrix.shape}.")
    return matrix
