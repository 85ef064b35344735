"""Advantages of the steps of episodes: all carry their episode's outcome, less a penalty of their own.

The score of step t of episode i is s_it = R_i - p_it. What a group's mean and deviation are taken over is a choice:

- `episodes`: each episode weighs the same, however long it is. Without penalties this is GRPO over episodes.
- `steps`: each step does, so that long episodes weigh more: what verl-agent, and with it SkillRL, computes (every step is a
  row of its batch, and mean and deviation are those of a group's rows).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from itertools import islice
from typing import Literal

from skill_ttrl.rl.advantages.registry import AdvantageEstimator, is_stepwise

GroupStatistics = Literal["episodes", "steps"]


def step_advantages(
    rewards: Sequence[float],
    penalties: Sequence[Sequence[float]],
    groups: Sequence[Hashable],
    estimate: AdvantageEstimator,
    epsilon: float,
    statistics: GroupStatistics = "episodes",
) -> list[list[float]]:
    """Advantage of each step of E episodes.

    Args:
        rewards: Outcome of each episode (E).
        penalties: For each episode what is taken off the score of each of its steps, at least 0. An episode without steps has
            its reward in the mean over episodes, and no advantages.
        groups: Group of each episode (E).
        estimate: Advantages from scores, such as `group_advantages`.
        epsilon: See `group_advantages`.
        statistics: What mean and deviation are taken over, see above.

    Returns:
        A row for each episode, with one advantage for each of its steps.

    Raises:
        ValueError: episodes are to weigh the same, a step is penalised, and the estimator does not take `episodes`.
    """
    if not rewards:
        return []
    if statistics == "episodes" and not any(map(any, penalties)):
        whole = estimate(rewards, groups, epsilon).tolist()
        return [[value] * len(row) for value, row in zip(whole, penalties, strict=True)]
    scores = [[reward - each for each in row] for reward, row in zip(rewards, penalties, strict=True)]
    if statistics == "steps":
        given = iter(estimate(*_flat(scores, groups), epsilon).tolist()) if any(scores) else iter(())
        return _rows(given, scores)
    if not is_stepwise(estimate):
        raise ValueError("This advantage does not take `episodes`: it cannot tell the steps of an episode apart.")
    counted = [row or [reward] for row, reward in zip(scores, rewards, strict=True)]
    episodes = [number for number, row in enumerate(counted) for _ in row]
    found = _rows(iter(estimate(*_flat(counted, groups), epsilon, episodes=episodes).tolist()), counted)
    return [values[: len(row)] for values, row in zip(found, scores, strict=True)]


def _flat(scores: Sequence[Sequence[float]], groups: Sequence[Hashable]) -> tuple[list[float], list[Hashable]]:
    owners = [group for group, row in zip(groups, scores, strict=True) for _ in row]
    return [score for row in scores for score in row], owners


def _rows(values: Iterator[float], like: Sequence[Sequence[float]]) -> list[list[float]]:
    return [list(islice(values, len(row))) for row in like]
