"""Selective and complementary pseudo-labels (SCRL, arXiv 2603.19880): a positive label where the vote is clear, negative ones where it is not.

The rules are those of the paper and of its authors' code (github.com/Jasper-Yan/SCRL, `scrl_utils.py`). Of the code, not of the
paper's equations: a sample without an answer gets -1, and the continuous reward of the positive label is its share p, where the
code's own comment says p less the threshold.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SCRLLabels:
    """Classes of answers that are labels."""

    positive: int | None
    """The class that is taken for true; None where none is clear enough."""
    negatives: Collection[int]
    """Classes that are taken for wrong; all others earn 0."""


def scrl_labels(
    shares: Sequence[float],
    entropies: Sequence[float],
    mean_entropy: float,
    *,
    positive_share: float = 0.5,
    margin: float = 0.15,
    negative_share: float = 0.15,
) -> SCRLLabels:
    """Choose the labels of a prompt.

    Args:
        shares: Share of each class of answers among all samples (C), largest first; samples without an answer count below the line.
        entropies: Mean entropy of the samples of each class (C), nats a token.
        mean_entropy: That of all samples of the prompt.
        positive_share: Least share of the positive label.
        margin: By more than this it leads the second class.
        negative_share: A negative label has a smaller share than this, and at least the prompt's entropy.
    """
    first, second = (*shares, 0.0, 0.0)[:2]
    clear = bool(shares) and first >= positive_share and (len(shares) == 1 or first - second > margin)
    positive = 0 if clear else None
    negatives = [
        place
        for place, (share, entropy) in enumerate(zip(shares, entropies, strict=True))
        if place != positive and share < negative_share and entropy >= mean_entropy
    ]
    return SCRLLabels(positive, frozenset(negatives))


def scrl_reward(
    place: int,
    labels: SCRLLabels,
    shares: Sequence[float],
    entropies: Sequence[float],
    mean_entropy: float,
    *,
    continuous: bool = False,
    negative_share: float = 0.15,
    entropy_weight: float = 0.1,
    no_answer: float = -1.0,
) -> float:
    """Reward a sample by its class.

    Args:
        place: Its class, -1 without an answer.
        labels: Those of the prompt.
        shares: See `scrl_labels`.
        entropies: See `scrl_labels`.
        mean_entropy: See `scrl_labels`.
        continuous: Rewards p, -(tau - p) and 0 in place of 1, -1 and 0, less lambda (H - mean H) of the class.
        negative_share: tau.
        entropy_weight: lambda.
        no_answer: Reward of a sample without an answer.
    """
    if place < 0:
        return no_answer
    positive, negative = place == labels.positive, place in labels.negatives
    if not continuous:
        return float(positive) - float(negative)
    earned = shares[place] if positive else -(negative_share - shares[place]) if negative else 0.0
    return earned - entropy_weight * (entropies[place] - mean_entropy)
