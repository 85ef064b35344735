"""Advantages of the steps of episodes: all carry their episode's outcome, less penalties of their own.

The reward of step t of episode i is s_it = R_i - p_it. What a group's mean and deviation are taken over is a choice:

- `episode`: each episode weighs the same, however long it is. Without penalties this is GRPO over episodes.
- `step`: each step does, so that long episodes weigh more: what verl-agent, and with it SkillRL, computes (every step is a
  row of its batch, and mean and deviation are those of a group's rows).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from itertools import islice
from typing import Literal

from skill_ttrl.rl.advantages.estimator import AdvantageEstimator, is_stepwise
from skill_ttrl.types import equal_rewards

GroupLevel = Literal["episode", "step"]


def step_advantages(
    outcomes: Sequence[float],
    rewards: Sequence[Sequence[float]],
    groups: Sequence[Hashable],
    estimate: AdvantageEstimator,
    level: GroupLevel = "episode",
) -> list[list[float]]:
    """Estimate the advantage of each step of E episodes.

    Args:
        outcomes: Outcome of each episode (E).
        rewards: Reward of each step of each episode. An episode without steps has its outcome in the mean over episodes, and no
            advantages.
        groups: Group of each episode (E).
        estimate: Advantages from rewards, such as `group_advantages`.
        level: What mean and deviation are taken over, see above.

    Returns:
        A row for each episode, with one advantage for each of its steps.

    Raises:
        ValueError: episodes weigh the same, steps of an episode differ, and the estimator does not take `episodes`.
    """
    if not rewards:
        return []
    if level == "step":
        given = iter(estimate(*_flat(rewards, groups)).tolist()) if any(map(len, rewards)) else iter(())
        return _rows(given, rewards)
    counted = [row or [outcome] for row, outcome in zip(rewards, outcomes, strict=True)]
    if all(map(equal_rewards, counted)):
        whole = estimate([row[0] for row in counted], groups).tolist()
        return [[value] * len(row) for value, row in zip(whole, rewards, strict=True)]
    if not is_stepwise(estimate):
        raise ValueError("This advantage does not take `episodes`: it cannot distinguish the steps of an episode.")
    episodes = [number for number, row in enumerate(counted) for _ in row]
    found = _rows(iter(estimate(*_flat(counted, groups), episodes=episodes).tolist()), counted)
    return [values[: len(row)] for values, row in zip(found, rewards, strict=True)]


def _flat(scores: Sequence[Sequence[float]], groups: Sequence[Hashable]) -> tuple[list[float], list[Hashable]]:
    owners = [group for group, row in zip(groups, scores, strict=True) for _ in row]
    return [score for row in scores for score in row], owners


def _rows(values: Iterator[float], like: Sequence[Sequence[float]]) -> list[list[float]]:
    return [list(islice(values, len(row))) for row in like]
