"""Votes: many answers in, one answer out, without a label (TTRL, arXiv 2504.16084, §2).

Two answers vote for the same thing exactly when `answers.canonical` says so, and the reward uses the same relation, so a
sample is rewarded if and only if it is counted for the winner. An answer that is missing or empty abstains: it cannot
win and is never rewarded. Ties go to the answer that appeared first and are reported.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

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


FIRST_STEPS = 3
"""Steps whose mean agreement says how sure the base model is."""
LATEST_FLIPS = 5
"""Steps over which the flip rate is averaged."""
WEAK_AGREEMENT = 0.3
HIGH_FLIP_RATE = 0.2
"""Thresholds of the warnings, set between the two shipped examples: `docs/voting.md` has both courses."""


@dataclass
class VoteHistory:
    """Winners by prompt over the steps of a run: flips, and the label-free signs of a collapse.

    Consensus that rises because the policy sharpens what it knows leaves each prompt's winner where it was. In a collapse
    winners change when a prompt comes round again (TTRL-Guard, arXiv 2605.19444, calls this the flip rate).
    """

    winners: dict[str, str] = field(default_factory=dict)
    """Canonical winner of each prompt at its last vote."""
    first_agreements: list[float] = field(default_factory=list)
    """Mean agreement of the first steps."""
    latest_flips: list[float] = field(default_factory=list)
    """Flip rates of the latest steps that had one."""

    def record(self, votes: Mapping[str, VoteResult]) -> dict[str, float]:
        """Take in one step's votes by prompt id; gives the step's label-free figures.

        `agreement`: mean share of the winner (TTRL: majority_ratio). `abstained`: mean share of samples without an answer.
        `ties`: share of prompts with one. `distinct_winners`: different winners over prompts that have one. `flip_rate`:
        share of prompts seen before whose winner changed; absent where none was seen before.
        """
        keys = {prompt: canonical(vote.answer) for prompt, vote in votes.items()}
        won = {prompt: key for prompt, key in keys.items() if key is not None}
        seen = [prompt for prompt in won if prompt in self.winners]
        figures = {
            "agreement": _mean([vote.agreement for vote in votes.values()]),
            "abstained": _mean([vote.abstained / max(1, len(vote.matches)) for vote in votes.values()]),
            "ties": _mean([float(vote.tie) for vote in votes.values()]),
        }
        if won:
            figures["distinct_winners"] = len(set(won.values())) / len(won)
        if seen:
            figures["flip_rate"] = _mean([float(won[prompt] != self.winners[prompt]) for prompt in seen])
            self.latest_flips = [*self.latest_flips, figures["flip_rate"]][-LATEST_FLIPS:]
        if len(self.first_agreements) < FIRST_STEPS:
            self.first_agreements.append(figures["agreement"])
        self.winners.update(won)
        return figures

    def warnings(self) -> list[str]:
        """What the votes themselves say against trusting them; no label is looked at."""
        found = []
        if len(self.first_agreements) == FIRST_STEPS and _mean(self.first_agreements) < WEAK_AGREEMENT:
            found.append(
                f"The first votes were weak: their winners had under {WEAK_AGREEMENT:.0%} of the samples. A majority that "
                "is mostly wrong teaches what is wrong; try a stronger base, more votes or easier tasks."
            )
        if len(self.latest_flips) > 1 and _mean(self.latest_flips) > HIGH_FLIP_RATE:
            found.append(
                f"Possible collapse: over {HIGH_FLIP_RATE:.0%} of the prompts that came round again had another winner "
                "than before. Agreement that rises in this way is no sign of accuracy; stop, or see docs/voting.md."
            )
        return found

    def state_dict(self) -> dict[str, Any]:
        """JSON-able state for a checkpoint."""
        return asdict(self)

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> VoteHistory:
        """The history that `state_dict` described."""
        return cls(**state)


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
