"""Votes: many answers in, one answer out, without a label (TTRL, arXiv 2504.16084, §2).

Two answers vote for the same thing exactly when `answers.canonical` says so, and the reward uses the same relation, so a
sample is rewarded if and only if it is counted for the winner. An answer that is missing or empty abstains: it cannot
win and is never rewarded. Ties go to the answer that appeared first and are reported.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from skill_ttrl.answers import canonicals
from skill_ttrl.types import VoteResult


def majority_vote(answers: Sequence[str | None]) -> VoteResult:
    """The most frequent answer of one group (TTRL, eq. 2: the mode of the extracted answers)."""
    keys = canonicals(answers)
    votes: dict[str, int] = {}
    first: dict[str, str] = {}
    for key, answer in zip(keys, answers, strict=True):
        if key is not None and answer is not None:
            votes[key] = votes.get(key, 0) + 1
            first.setdefault(key, answer)
    ranked = sorted(votes, key=lambda key: -votes[key])  # stable: ties stay in order of first appearance
    winner = ranked[0] if ranked else None
    return VoteResult(
        answer=first[winner] if winner is not None else None,
        agreement=votes[winner] / len(answers) if winner is not None else 0.0,
        matches=tuple(key is not None and key == winner for key in keys),
        classes=tuple((first[key], votes[key]) for key in ranked),
        abstained=sum(key is None for key in keys),
        tie=len(ranked) > 1 and votes[ranked[0]] == votes[ranked[1]],
    )


def batch_majority_vote(groups: Iterable[Sequence[str | None]]) -> list[VoteResult]:
    """One vote for each group of answers; all distinct answers are compared in one go."""
    groups = list(groups)
    canonicals([answer for answers in groups for answer in answers])
    return [majority_vote(answers) for answers in groups]


def compute_voting_rewards(answers: Sequence[str | None]) -> tuple[list[float], str | None, float]:
    """Rewards (1.0 for agreeing with the majority, else 0.0), the majority answer and the agreement."""
    vote = majority_vote(answers)
    return [float(match) for match in vote.matches], vote.answer, vote.agreement
