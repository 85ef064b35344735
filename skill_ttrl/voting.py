"""Votes: many answers in, one answer out, without a label (TTRL, arXiv 2504.16084, §2).

Two answers vote for the same thing exactly when `answers.canonical` says so, and the reward uses the same relation, so a
sample is rewarded if and only if it is counted for the winner. An answer that is missing or empty abstains: it cannot
win and is never rewarded. Ties go to the answer that appeared first and are reported.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from skill_ttrl.answers import canonical, equivalent
from skill_ttrl.types import VoteResult


def majority_vote(answers: Sequence[str | None]) -> VoteResult:
    """The most frequent answer of one group (TTRL, eq. 2: the mode of the extracted answers)."""
    keys = [canonical(answer) for answer in answers]
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
    """One vote for each group of answers."""
    return [majority_vote(answers) for answers in groups]


def compute_voting_rewards(answers: Sequence[str | None]) -> tuple[list[float], str | None, float]:
    """Rewards (1.0 for agreeing with the majority, else 0.0), the majority answer and the agreement."""
    vote = majority_vote(answers)
    return [float(match) for match in vote.matches], vote.answer, vote.agreement


@dataclass
class VoteHistory:
    """Winners by prompt over the steps of a run: flips and the label-free signs of a collapse.

    Consensus that rises because the policy sharpens what it knows leaves each prompt's winner where it was. In a
    collapse winners change when a prompt comes round again, and unlike prompts begin to share one answer.
    """

    winners: dict[str, str] = field(default_factory=dict)
    """Canonical winner of each prompt at its last vote."""
    first_agreement: float | None = None
    """Mean agreement of the first step."""

    def record(self, votes: Mapping[str, VoteResult]) -> dict[str, float]:
        """Take in one step's votes by prompt id; gives the step's label-free figures.

        `flip_rate`: share of prompts seen before whose winner changed (TTRL-Guard's FR); absent when none was seen before.
        `distinct_winners`: different winners over prompts with a winner, in (0, 1].
        """
        keys = {prompt: canonical(vote.answer) for prompt, vote in votes.items()}
        seen = [prompt for prompt in keys if prompt in self.winners and keys[prompt] is not None]
        flips = sum(keys[prompt] != self.winners[prompt] for prompt in seen)
        won = [key for key in keys.values() if key is not None]
        figures = {
            "agreement": _mean([vote.agreement for vote in votes.values()]),
            "abstained": _mean([vote.abstained / max(1, len(vote.matches)) for vote in votes.values()]),
            "ties": _mean([float(vote.tie) for vote in votes.values()]),
        }
        if won:
            figures["distinct_winners"] = len(set(won)) / len(won)
        if seen:
            figures["flip_rate"] = flips / len(seen)
        if self.first_agreement is None:
            self.first_agreement = figures["agreement"]
        self.winners.update({prompt: key for prompt, key in keys.items() if key is not None})
        return figures

    def warnings(self) -> list[str]:
        return []

    def state_dict(self) -> dict[str, object]:
        """JSON-able state for a checkpoint."""
        return {"winners": self.winners, "first_agreement": self.first_agreement}

    @classmethod
    def from_state(cls, state: Mapping[str, object]) -> VoteHistory:
        """The history that `state_dict` described."""
        winners, agreement = state["winners"], state["first_agreement"]
        assert isinstance(winners, dict)
        return cls(dict(winners), None if agreement is None else float(str(agreement)))


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
        reward.append(_mean([float(a == b) for a, b in zip(correct, vote.matches, strict=True)]))
        truth.append(_mean([float(c) for c in correct]))
        voted.append(_mean([float(match) for match in vote.matches]))
    return {
        "label_accuracy": _mean(label),
        "reward_accuracy": _mean(reward),
        "ground_truth_ratio": _mean(truth),
        "majority_voting_reward": _mean(voted),
    }


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
