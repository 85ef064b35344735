"""Votes: many answers in, one answer out, without a label."""

from skill_ttrl.voting.ballot import (
    STRATEGIES,
    Ballot,
    Strategy,
    ballot_of,
    batch_vote,
    check_strategy,
    requires,
    strategy,
    vote,
)
from skill_ttrl.voting.history import VoteHistory
from skill_ttrl.voting.metrics import (
    UndecidedAnswers,
    apply_original_gt,
    apply_pseudo_labels,
    apply_ttrl_gt,
    compute_ttrl_metrics,
    copied_winners,
    given_up,
    label_metrics,
    restore_labels,
    trained_metrics,
    vote_metrics,
)
from skill_ttrl.voting.strategies import batch_majority_vote, compute_voting_rewards, majority_vote

__all__ = [
    "STRATEGIES",
    "Ballot",
    "UndecidedAnswers",
    "Strategy",
    "VoteHistory",
    "apply_original_gt",
    "apply_pseudo_labels",
    "apply_ttrl_gt",
    "ballot_of",
    "batch_majority_vote",
    "batch_vote",
    "check_strategy",
    "compute_ttrl_metrics",
    "compute_voting_rewards",
    "copied_winners",
    "given_up",
    "label_metrics",
    "majority_vote",
    "requires",
    "restore_labels",
    "strategy",
    "trained_metrics",
    "vote",
    "vote_metrics",
]
