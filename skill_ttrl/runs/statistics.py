"""Statistics of an evaluation: accuracies over samples, intervals, and how much the answers agree.

Pure functions over numpy arrays. Shape suffixes: P problems, K samples of each. Problems are the unit that was drawn,
so intervals resample problems, never single samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Statistic = Callable[[NDArray[np.float64]], NDArray[np.float64]]
"""From draws (samples, P) to one value for each draw (samples,)."""

_CHUNK = 4_000_000  # most drawn values held at once: 32 MB


def avg_at_k(correct_P_K: ArrayLike) -> float:
    """Mean accuracy of single samples (avg@k, also written mean@k), in [0, 1].

    Args:
        correct_P_K: Whether each sample is right, one row a problem.

    Raises:
        ValueError: the matrix is empty or has another shape.
    """
    return float(_matrix(correct_P_K).mean())


def pass_at_k(n: int, c: int, k: int) -> float:
    """Unbiased estimate of the chance that at least one of `k` samples is right.

    1 - C(n-c, k) / C(n, k), as the product of Chen et al. 2021 (arXiv 2107.03374, eq. 1), which never forms a large
    binomial.

    Args:
        n: Samples drawn.
        c: How many of them are right, 0..n.
        k: Size of the imagined draw, 1..n.

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
    z = NormalDist().inv_cdf(0.5 + _level(confidence) / 2)
    share = successes / n
    scale = 1 + z * z / n
    center = (share + z * z / (2 * n)) / scale
    half = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n)) / scale
    # At the ends the bound is the share itself; rounding must not move it past.
    return (0.0 if successes == 0 else min(share, center - half), 1.0 if successes == n else max(share, center + half))


def mean_over_problems(draws: NDArray[np.float64]) -> NDArray[np.float64]:
    """The usual statistic: mean over the last axis."""
    return np.asarray(draws.mean(axis=-1))


def bootstrap_interval(
    values_P: ArrayLike,
    statistic: Statistic = mean_over_problems,
    *,
    confidence: float = 0.95,
    samples: int = 2000,
    seed: int = 0,
) -> tuple[float, float]:
    """Percentile bootstrap over problems (Efron & Tibshirani 1993, ch. 13).

    Args:
        values_P: One value a problem, e.g. the share of its samples that are right.
        statistic: From drawn values (samples, P) to one value a draw.
        confidence: Level in (0, 1).
        samples: Draws.
        seed: Same seed, same interval.

    Returns:
        (low, high).

    Raises:
        ValueError: there are no values, or a number is out of its range.
    """
    values = np.asarray(values_P, dtype=np.float64)
    if values.ndim != 1 or values.size == 0:
        raise ValueError(f"bootstrap_interval needs one value a problem, found shape {values.shape}.")
    if samples < 1:
        raise ValueError(f"bootstrap_interval needs at least one draw, found samples={samples}.")
    generator = np.random.default_rng(seed)
    rows = max(1, _CHUNK // values.size)
    drawn = [
        statistic(values[generator.integers(0, values.size, size=(min(rows, samples - start), values.size))])
        for start in range(0, samples, rows)
    ]
    tail = (1 - _level(confidence)) / 2
    low, high = np.quantile(np.concatenate(drawn), [tail, 1 - tail])
    return float(low), float(high)


def paired_bootstrap_difference(
    before_P: ArrayLike,
    after_P: ArrayLike,
    *,
    confidence: float = 0.95,
    samples: int = 2000,
    seed: int = 0,
) -> tuple[float, float, float]:
    """Mean difference `after - before` over the same problems, with its bootstrap interval.

    Pairing removes the spread between easy and hard problems, which two separate intervals would both carry.

    Returns:
        (difference, low, high).

    Raises:
        ValueError: the two do not have one value for the same problems each.
    """
    before, after = np.asarray(before_P, dtype=np.float64), np.asarray(after_P, dtype=np.float64)
    if before.shape != after.shape:
        raise ValueError(f"A paired difference needs the same problems, found shapes {before.shape} and {after.shape}.")
    difference = after - before
    low, high = bootstrap_interval(difference, confidence=confidence, samples=samples, seed=seed)
    return float(difference.mean()), low, high


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


def _level(confidence: float) -> float:
    if not 0 < confidence < 1:
        raise ValueError(f"A confidence level lies between 0 and 1, found {confidence}.")
    return confidence


def _matrix(correct: Any) -> NDArray[np.float64]:
    matrix = np.asarray(correct, dtype=np.float64)
    if matrix.ndim != 2 or matrix.size == 0:
        raise ValueError(f"Correctness is a matrix of problems x samples, found shape {matrix.shape}.")
    return matrix
