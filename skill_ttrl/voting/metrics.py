"""Votes against true answers that no reward has seen, in TTRL's names."""

from __future__ import annotations

from collections.abc import Sequence

from skill_ttrl.answers import equivalent
from skill_ttrl.types import VoteResult


def label_metrics(
    votes: Sequence[VoteResult], references: Sequence[str], groups: Sequence[Sequence[str | None]]
) -> dict[str, float]:
    """How good the votes are, measured with true answers that no reward has seen (TTRL's names).

    `label_accuracy`: share of prompts whose winner is true. `reward_accuracy`: share of samples whose vote reward equals
    their true reward. `ground_truth_ratio`: mean true reward. `majority_voting_reward`: mean vote reward.
    """
    label, reward, truth, voted = [], [], [], []
    for vote, reference, answers in zip(votes, references, groups, strict=True):
        label.append(float(vote.answer is not None and equivalent(vote.answer, reference)))
        correct = [answer is not None and equivalent(answer, reference) for answer in answers]
        reward.append(mean([float(a == b) for a, b in zip(correct, vote.matches, strict=True)]))
        truth.append(mean([float(c) for c in correct]))
        voted.append(mean([float(match) for match in vote.matches]))
    return {
        "label_accuracy": mean(label),
        "reward_accuracy": mean(reward),
        "ground_truth_ratio": mean(truth),
        "majority_voting_reward": mean(voted),
    }


def mean(values: Sequence[float]) -> float:
    """Mean, 0 of nothing."""
    return sum(values) / len(values) if values else 0.0
