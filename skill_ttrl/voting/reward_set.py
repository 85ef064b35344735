"""The rewards of a run: one, or a weighted sum of several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from skill_ttrl.types import Group, VoteResult
from skill_ttrl.voting.rewards import Reward
from skill_ttrl.voting.tally import tally


@dataclass(frozen=True)
class RewardSet:
    """Rewards by name; the first is `rl.reward`, whose weight is 1."""

    rewards: Mapping[str, Reward]
    weights: Mapping[str, float] = field(default_factory=dict)
    """Of the further ones (`rl.extra_rewards`)."""

    def __call__(self, group: Group, vote: VoteResult, seed: int) -> Group:
        """The group, each rollout carrying its reward, and where there are several each of them by name.

        Args:
            group: Rollouts of one task.
            vote: Their vote.
            seed: For rewards that draw.
        """
        rows = {name: list(reward(group, vote, seed)) for name, reward in self.rewards.items()}
        if len(rows) == 1:
            return group.with_rewards(next(iter(rows.values())))
        parts = [{name: row[place] for name, row in rows.items()} for place in range(len(group.trajectories))]
        return group.with_rewards([self.total(part) for part in parts], parts)

    def total(self, part: Mapping[str, float]) -> float:
        """The weighted sum of one rollout's rewards."""
        return sum(self.weights.get(name, 1.0) * value for name, value in part.items())


def late_vote(vote: VoteResult, answers: Sequence[str | None], late: str | None) -> VoteResult:
    """A vote as it bears on one answer that did not take part: it is rewarded as those that gave the same one, else with 0.

    Args:
        vote: What the `answers` voted.
        answers: Of the rollouts that voted.
        late: The further answer; None: none was given.
    """
    *classes, own = tally([*answers, late]).class_ids
    same = classes.index(own) if own >= 0 and own in classes else None
    if same is None:
        return VoteResult(vote.answer, vote.majority_ratio, (False,), vote.classes, rewards=(0.0,))
    return vote.select([same])
