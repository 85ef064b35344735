"""Votes: many answers in, one answer out, without a label."""

from skill_ttrl.voting import guard, harmonic, majority, restrain, weighted  # noqa: F401  each files its strategies
from skill_ttrl.voting.ballot import (
    STRATEGIES,
    Ballot,
    Strategy,
    ballot_of,
    batch_vote,
    check_strategy,
    needs,
    strategy,
    vote,
)
from skill_ttrl.voting.given_up import UndecidedAnswers, given_up
from skill_ttrl.voting.history import PromptHistory, VoteHistory
from skill_ttrl.voting.labels import apply_pseudo_labels, restore_labels
from skill_ttrl.voting.majority import batch_majority_vote, compute_voting_rewards, majority_vote
from skill_ttrl.voting.metrics import label_metrics, trained_metrics, vote_metrics

__all__ = [
    "STRATEGIES",
    "Ballot",
    "UndecidedAnswers",
    "PromptHistory",
    "Strategy",
    "VoteHistory",
    "apply_pseudo_labels",
    "ballot_of",
    "batch_majority_vote",
    "batch_vote",
    "check_strategy",
    "compute_voting_rewards",
    "given_up",
    "label_metrics",
    "majority_vote",
    "needs",
    "restore_labels",
    "strategy",
    "trained_metrics",
    "vote",
    "vote_metrics",
]
