"""Votes: many answers in, one answer out, without a label."""

from skill_ttrl.voting.ballot import STRATEGIES, Ballot, Strategy, vote
from skill_ttrl.voting.history import VoteHistory
from skill_ttrl.voting.majority import batch_majority_vote, compute_voting_rewards, majority_vote
from skill_ttrl.voting.metrics import label_metrics

__all__ = [
    "STRATEGIES",
    "Ballot",
    "Strategy",
    "VoteHistory",
    "batch_majority_vote",
    "compute_voting_rewards",
    "label_metrics",
    "majority_vote",
    "vote",
]
