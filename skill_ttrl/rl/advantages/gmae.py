"""Advantages over all groups that a sample could have been in (GMAE, arXiv 2609.36750), exactly.

Of M samples of a prompt that voted, G are trained on. Which other G - 1 a sample is compared with is chance, and in another group
another answer may win. A context of sample i is i with G - 1 of the other M - 1, each choice equally likely; in it the most
frequent answer wins (ties: each of the tied is equally likely to have appeared first), and a sample that agrees earns 1, others 0.

The class counts of a context follow a multivariate hypergeometric distribution. It is that of independent binomial counts given
their sum, so a product of polynomials, one factor for each class, with the number of tied classes as a second exponent, gives
every probability below without enumerating a context.

A context of which S samples earn 1 has the mean S / G and the (population) deviation sqrt(S (G - S)) / G, hence GRPO's advantages
sqrt((G - S) / S) for a reward of 1 and -sqrt(S / (G - S)) for one of 0; 0 where all or none earn it.

The paper's text was not at hand. From notes of it: the probability p_i, the two advantages, and the sum S of the others as a
Poisson binomial (`poisson_binomial_advantages`). Inferred: ties, and samples without an answer, which never earn anything.
`GroupContexts.advantages` is ours: it drops the assumption that the others' rewards are independent, which those of one vote are not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array


@dataclass(frozen=True)
class GroupContexts:
    """Outcome for a sample of one class in its contexts.

    Build it with `group_contexts`.
    """

    group_size: int
    """G."""
    wins_S: Float[Array, " S"]
    """Probability that its class wins with s votes, s = 0 to G."""
    losses_S: Float[Array, " S"]
    """Probability that another class wins with s votes."""

    @property
    def reward(self) -> float:
        """p: share of the contexts in which the sample is rewarded."""
        return float(self.wins_S.sum())

    @property
    def advantage(self) -> float:
        """Mean of GRPO's advantage over all contexts."""
        return float(self.wins_S @ _rewarded(self.group_size) + self.losses_S @ _unrewarded(self.group_size))


def group_contexts(class_sizes: Sequence[int], silent: int, group_size: int) -> list[GroupContexts]:
    """Distribution of the votes over all contexts, for a sample of each class, and last for one without an answer.

    Args:
        class_sizes: Samples of each class among the M that voted, each at least 1.
        silent: Samples among them without an answer.
        group_size: G, from 1 to M.

    Returns:
        One for each class, in order, and one more for a sample without an answer.

    Raises:
        ValueError: the group is not a part of those that voted.
    """
    voters = sum(class_sizes) + silent
    if not 1 <= group_size <= voters:
        raise ValueError(f"A group of {group_size} cannot be drawn from {voters} samples that voted.")
    known: dict[int, GroupContexts] = {}
    for size in set(class_sizes):
        rest = list(class_sizes)
        rest.remove(size)
        known[size] = _contexts_of(size, rest, silent, group_size)
    # A sample without an answer is a class of its own that cannot win.
    nobody = _contexts_of(0, list(class_sizes), silent - 1, group_size) if silent else None
    empty = np.zeros(group_size + 1)
    return [*(known[size] for size in class_sizes), nobody or GroupContexts(group_size, empty, empty)]


def _contexts_of(size: int, rest: Sequence[int], silent: int, group_size: int) -> GroupContexts:
    """Contexts of a sample whose class has `size` samples, itself among them; 0: of one without an answer."""
    own, drawn = max(0, size - 1), group_size - 1
    others = own + sum(rest) + silent
    rate = drawn / others if others else 0.0
    wins_S, losses_S = np.zeros(group_size + 1), np.zeros(group_size + 1)
    mine = _binomial(own, rate)
    for most in range(1, min(group_size, max([size, *rest], default=0)) + 1):
        ways_D_T = _ways(rest, silent, rate, most, drawn)
        ties_T = np.arange(ways_D_T.shape[1])
        for more in range(min(own, drawn) + 1):
            mass_T = mine[more] * ways_D_T[drawn - more]
            votes = more + 1 if size else 0
            if votes == most:
                wins_S[most] += (mass_T / (ties_T + 1)).sum()
                losses_S[most] += (mass_T * ties_T / (ties_T + 1)).sum()
            elif votes < most:
                losses_S[most] += mass_T[1:].sum()
    total = _binomial(others, rate)[drawn]
    return GroupContexts(group_size, wins_S / total, losses_S / total)


def _ways(rest: Sequence[int], silent: int, rate: float, most: int, drawn: int) -> Float[Array, "D T"]:
    """Probability that the other classes give d samples, d = 0 to `drawn`, none has more than `most`, and t have just as many."""
    ties = min(drawn // most, sum(size >= most for size in rest))
    ways = np.zeros((drawn + 1, ties + 1))
    free = _binomial(silent, rate)[: drawn + 1]
    ways[: len(free), 0] = free
    for size in rest:
        chances = _binomial(size, rate)
        after = np.zeros_like(ways)
        for count in range(min(size, most - 1, drawn) + 1):
            after[count:] += chances[count] * ways[: drawn + 1 - count]
        if size >= most and drawn >= most:
            after[most:, 1:] += chances[most] * ways[: drawn + 1 - most, :-1]
        ways = after
    return ways


@lru_cache(maxsize=4096)
def _binomial(count: int, rate: float) -> Float[Array, " K"]:
    """Probability of k = 0 to `count` successes."""
    if rate in (0.0, 1.0):
        return np.array([float(k == rate * count) for k in range(count + 1)])
    logs = [
        math.lgamma(count + 1) - math.lgamma(k + 1) - math.lgamma(count - k + 1)
        + k * math.log(rate) + (count - k) * math.log1p(-rate)
        for k in range(count + 1)
    ]  # fmt: skip
    return np.exp(logs)


@cache
def _rewarded(group_size: int) -> Float[Array, " S"]:
    """Advantage of a reward of 1 where s = 0 to G samples earn it (never read at 0)."""
    return np.array([0.0, *(math.sqrt((group_size - s) / s) for s in range(1, group_size + 1))])


@cache
def _unrewarded(group_size: int) -> Float[Array, " S"]:
    """Advantage of a reward of 0 where s = 0 to G samples earn 1 (never read at G)."""
    return np.array([*(-math.sqrt(s / (group_size - s)) for s in range(group_size)), 0.0])


def poisson_binomial_advantages(probabilities: Sequence[float]) -> Float[Array, " G"]:
    """Expected GRPO advantages where the rewards of a group of G are independent, each 1 with a probability of its own.

    A_i = p_i E[sqrt((G - S) / S)] - (1 - p_i) E[sqrt(S' / (G - S'))], with S' the Poisson-binomial sum of the others and
    S = 1 + S'.

    Args:
        probabilities: p of each sample of the group (G), in [0, 1].

    Returns:
        Advantages (G,). Where each p is 0 or 1 they are GRPO's, with the population deviation.
    """
    size = len(probabilities)
    found: dict[float, float] = {}
    for chosen in set(probabilities):
        others = list(probabilities)
        others.remove(chosen)
        sum_S = np.array([1.0])
        for p in others:
            sum_S = np.convolve(sum_S, [1.0 - p, p])
        found[chosen] = float(
            chosen * (sum_S @ _rewarded(size)[1:]) + (1.0 - chosen) * (sum_S @ _unrewarded(size)[:-1])
        )
    return np.array([found[p] for p in probabilities])
