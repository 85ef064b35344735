"""The samples of a prompt that voted, counted: what algorithms see that form labels of their own from the votes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from skill_ttrl.rl.algorithms.contract import TrainingSamples
from skill_ttrl.types import Group
from skill_ttrl.voting import Ballot, ballot_of


@dataclass(frozen=True, slots=True)
class VotePool:
    """The votes of one prompt: M samples voted, G of them are trained on. Failed rollouts are not among them."""

    class_sizes: Sequence[int]
    """Samples of each class of equal answers, most first."""
    silent: int
    """Samples without an answer."""
    class_ids: Sequence[int]
    """Class of each of the M samples, -1 without an answer."""
    trained: Sequence[int]
    """Class of each of the G trained samples, -1 without an answer."""
    surprise: Sequence[float] | None
    """Mean -log p (nats a token) of the tokens of each of the M samples; None where log-probs are not known."""

    @property
    def shares(self) -> list[float]:
        """Share of each class of all M samples."""
        return [size / len(self.class_ids) for size in self.class_sizes]


def pools_of(samples: TrainingSamples) -> list[VotePool]:
    """Count the votes of each group's task. Where the voters are not known they are the group's own rollouts."""
    return [
        pool_of(group, voters) for group, voters in zip(samples.groups, samples.voters or samples.groups, strict=True)
    ]


def pool_of(group: Group, voters: Group) -> VotePool:
    """Count the votes of one task.

    Args:
        group: The rollouts that are trained on.
        voters: All that voted, those of the group among them.
    """
    whole = voters.select([place for place, each in enumerate(voters.trajectories) if each.error is None])
    ballot = ballot_of(whole)
    tally = ballot.tally()
    classes = dict(zip(ballot.answers, tally.class_ids, strict=True))
    return VotePool(
        class_sizes=tuple(tally.votes.values()),
        silent=tally.keys.count(None),
        class_ids=tally.class_ids,
        trained=tuple(classes[answer] for answer in group.answers),
        surprise=_surprise(ballot),
    )


def _surprise(ballot: Ballot) -> tuple[float, ...] | None:
    if ballot.logprobs is None or ballot.lengths is None:
        return None
    return tuple(-total / max(1, count) for total, count in zip(ballot.logprobs, ballot.lengths, strict=True))
