"""Advantages shaped by a vote: weights of several labels, a penalty, a bonus."""

from __future__ import annotations

from collections.abc import Sequence

from skill_ttrl.rl.advantages.estimator import AdvantageEstimator
from skill_ttrl.types import VoteResult


def shape_advantages(vote: VoteResult, advantages: Sequence[float], estimate: AdvantageEstimator) -> list[float]:
    """Apply a vote to the advantages that its rewards alone would give.

    A_i = weight (Σ_j w_j A_i^(j) - penalty), then + bonus_i mean|A|. A^(j) are the advantages of `estimate` over this prompt's
    samples for the rewards 1[sample in class j]; where the winner is the only label the sum is `advantages`, which come from
    the same estimator. There is one for each sample that is trained on, and the vote is as it bears on those (`VoteResult.select`).
    """
    values = list(advantages)
    if vote.label_weights:
        values = [0.0] * len(values)
        for label, weight in enumerate(vote.label_weights):
            rewards = [float(place == label) for place in vote.class_ids]
            if any(rewards):
                alone = estimate(rewards, [0] * len(rewards)).tolist()
                values = [value + weight * each for value, each in zip(values, alone, strict=True)]
    if vote.weight != 1.0 or vote.penalty:
        values = [vote.weight * (value - vote.penalty) for value in values]
    if vote.bonus:
        scale = sum(map(abs, values)) / len(values) if values else 0.0
        values = [value + extra * scale for value, extra in zip(values, vote.bonus, strict=True)]
    return values
