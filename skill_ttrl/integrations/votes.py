"""Votes among completions that another library has sampled."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from skill_ttrl.types import VoteResult
from skill_ttrl.voting import Ballot, batch_vote


def vote_in_groups(
    prompts: Sequence[Hashable],
    answers: Sequence[str | None],
    strategy: str = "majority",
    options: Mapping[str, Any] | None = None,
    base_answers: Sequence[Sequence[str | None] | None] | None = None,
) -> tuple[list[float], list[VoteResult]]:
    """Vote within the completions of each prompt.

    Args:
        prompts: the prompt of each completion, or what names it. Those of one prompt need not be side by side.
        answers: the answer of each; None abstains.
        strategy: a name of `voting.STRATEGIES`, or `module:function`.
        options: of the strategy.
        base_answers: for each completion what the policy before training answered to its prompt.

    Returns:
        The reward of each completion, and the vote on each prompt, in order of first appearance.

    Raises:
        ConfigError: as `voting.vote`.
    """
    groups: dict[Hashable, list[int]] = {}
    for place, (prompt, _) in enumerate(zip(prompts, answers, strict=True)):
        groups.setdefault(prompt, []).append(place)
    ballots = []
    for members in groups.values():
        base = base_answers[members[0]] if base_answers is not None else None
        own = tuple(answers[place] for place in members)
        ballots.append(Ballot(own, base_answers=None if base is None else tuple(base)))
    votes, rewards = batch_vote(strategy, ballots, options), [0.0] * len(answers)
    for members, vote in zip(groups.values(), votes, strict=True):
        for place, reward in zip(members, vote.sample_rewards, strict=True):
            rewards[place] = reward
    return rewards, votes
