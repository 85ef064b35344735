"""Votes: many answers in, one answer out, without a label (TTRL, arXiv 2504.16084, §2).

Two answers vote for the same thing exactly when `answers.canonical` says so, and the reward uses the same relation, so a
sample is rewarded if and only if it is counted for the winner. An answer that is missing or empty abstains: it cannot
win and is never rewarded. Ties go to the answer that appeared first and are reported.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from skill_ttrl.answers import Answer, answer_text
from skill_ttrl.types import VoteResult
from skill_ttrl.voting.ballot import Ballot
from skill_ttrl.voting.strategies import batch_vote, strategy
from skill_ttrl.voting.tally import tally


@strategy("majority")
def majority(ballot: Ballot) -> VoteResult:
    """The most frequent answer, y* = mode(y_1 … y_N), rewards 1[y_i = y*] (TTRL, arXiv 2504.16084, eq. 2 and 3)."""
    return ballot.tally().result()


def majority_vote(answers: Sequence[Answer]) -> VoteResult:
    """The most frequent answer of one group (TTRL, eq. 2: the mode of the extracted answers); answers are texts or numbers."""
    return tally([answer_text(answer) for answer in answers]).result()


def batch_majority_vote(groups: Iterable[Sequence[Answer]]) -> list[VoteResult]:
    """One vote for each group of answers; all distinct answers are compared in one go."""
    return batch_vote("majority", [Ballot(tuple(map(answer_text, answers))) for answers in groups])


def compute_voting_rewards(answers: Sequence[Answer]) -> tuple[list[float], str | None, float]:
    """Rewards (1.0 for agreeing with the majority, else 0.0), the majority answer and the agreement."""
    vote = majority_vote(answers)
    return [float(match) for match in vote.matches], vote.answer, vote.majority_ratio
