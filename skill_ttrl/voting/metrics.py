"""What a step's votes are worth, in TTRL's names: with true answers that no reward has seen, and without."""

from __future__ import annotations

from collections.abc import Sequence

from skill_ttrl.answers import canonicals
from skill_ttrl.types import VoteResult


def label_metrics(
    votes: Sequence[VoteResult], references: Sequence[str], groups: Sequence[Sequence[str | None]]
) -> dict[str, float]:
    """How good the votes are, measured with true answers that no reward has seen (TTRL's names), as means over prompts.

    `label_accuracy`: 1 where the winner is true. `reward_accuracy`: share of samples that belong to the winner's class exactly
    if they are true; for rewards of 0 and 1 that is TTRL's 1[r_i = r_i^true]. `ground_truth_ratio`: mean true reward.
    `majority_voting_reward`: mean vote reward. `pass@N`: 1 where any of the N samples is true, N the most samples of a prompt.

    Args:
        votes: One for each prompt.
        references: Their true answers.
        groups: The answers that were voted on.
    """
    winners, correct = _graded(votes, references, groups)
    samples = max((len(answers) for answers in groups), default=0)
    return {
        "label_accuracy": mean([float(right) for right in winners]),
        "reward_accuracy": _reward_accuracy(votes, correct),
        "ground_truth_ratio": mean([mean([float(right) for right in row]) for row in correct]),
        "majority_voting_reward": mean([mean(vote.earned) for vote in votes]),
        f"pass@{samples}": mean([float(any(row)) for row in correct]),
    }


def trained_metrics(
    votes: Sequence[VoteResult], references: Sequence[str], groups: Sequence[Sequence[str | None]], samples: int
) -> dict[str, float]:
    """The same on the samples that were trained on (TTRL: `post_`), as means over the prompts that were.

    `post_reward_accuracy`, `post_ground_truth_ratio` and `post_pass@K`; nothing where no prompt was trained on.

    Args:
        votes: As they bear on those samples (`VoteResult.select`).
        references: True answers of the prompts.
        groups: Answers of those samples.
        samples: K, samples that are trained on of each prompt.
    """
    if not groups:
        return {}
    _, correct = _graded(votes, references, groups)
    return {
        "post_reward_accuracy": _reward_accuracy(votes, correct),
        "post_ground_truth_ratio": mean([mean([float(right) for right in row]) for row in correct]),
        f"post_pass@{samples}": mean([float(any(row)) for row in correct]),
    }


def vote_metrics(votes: Sequence[VoteResult], *, shaping: bool = False) -> dict[str, float]:
    """What the votes of a step did to training, without labels, as means over prompts.

    `majority_voting_reward` (TTRL): mean vote reward. With `shaping` also `vote_weight`, `vote_penalty`, `vote_bonus` (share of
    samples that get one), `vote_skipped` (share of prompts), and as `vote_<flag>` the share of prompts with each flag that any
    of them has.

    Args:
        votes: One for each prompt.
        shaping: Whether the strategy may do more than reward its winner's class.
    """
    figures = {"majority_voting_reward": mean([mean(vote.earned) for vote in votes])}
    if not shaping:
        return figures
    flags = sorted({flag for vote in votes for flag in vote.flags})
    return {
        **figures,
        "vote_weight": mean([vote.weight for vote in votes]),
        "vote_penalty": mean([vote.penalty for vote in votes]),
        "vote_bonus": mean([mean([float(extra > 0) for extra in vote.bonus]) for vote in votes]),
        "vote_skipped": mean([float(vote.skipped) for vote in votes]),
        **{f"vote_{flag}": mean([float(flag in vote.flags) for vote in votes]) for flag in flags},
    }


def mean(values: Sequence[float]) -> float:
    """Mean, 0 of nothing."""
    return sum(values) / len(values) if values else 0.0


def _graded(
    votes: Sequence[VoteResult], references: Sequence[str], groups: Sequence[Sequence[str | None]]
) -> tuple[list[bool], list[list[bool]]]:
    """Whether each winner and each sample is true; all distinct answers are compared in one go."""
    keys = iter(
        canonicals([*(vote.answer for vote in votes), *references, *(a for answers in groups for a in answers)])
    )
    winners = [next(keys) for _ in votes]
    truths = [next(keys) for _ in references]
    rows = [[next(keys) for _ in answers] for answers in groups]
    right = [key is not None and key == truth for key, truth in zip(winners, truths, strict=True)]
    return right, [[key is not None and key == truth for key in row] for row, truth in zip(rows, truths, strict=True)]


def _reward_accuracy(votes: Sequence[VoteResult], correct: Sequence[Sequence[bool]]) -> float:
    return mean(
        [
            mean([float(match == right) for match, right in zip(vote.matches, row, strict=True)])
            for vote, row in zip(votes, correct, strict=True)
        ]
    )
