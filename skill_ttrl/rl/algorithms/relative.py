"""Group-relative algorithms in common: from an estimator over rewards to the advantages of rollouts and their steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from skill_ttrl.rl.advantages import AdvantageEstimator, GroupLevel, shape_advantages, step_advantages
from skill_ttrl.rl.algorithms.contract import TrainingSamples
from skill_ttrl.rl.pack import Advantages


def relative_advantages(
    samples: TrainingSamples, estimate: AdvantageEstimator, level: GroupLevel = "episode"
) -> Advantages:
    """Estimate advantages from `token_level_rewards`, and let the votes shape them.

    Args:
        samples: Rollouts with rewards.
        estimate: Maps rewards and groups onto advantages.
        level: What a group's statistics are taken over (`advantages.episodes`).

    Returns:
        One for each trajectory, or where steps of an episode differ one for each step.
    """
    rows, owners = samples.step_rewards, samples.owners
    if level == "step" or any(len(set(row)) > 1 for row in rows):
        return step_advantages(samples.rewards, rows, owners, estimate, level)
    rewards = [row[0] if row else reward for row, reward in zip(rows, samples.rewards, strict=True)]
    values = estimate(rewards, owners).tolist() if rewards else []
    if samples.votes is None:
        return list(values)
    given = iter(values)
    by_group = [[next(given) for _ in group.trajectories] for group in samples.groups]
    shaped = [shape_advantages(vote, row, estimate) for vote, row in zip(samples.votes, by_group, strict=True)]
    return [value for row in shaped for value in row]


def rescored(samples: TrainingSamples, scores: Sequence[float]) -> TrainingSamples:
    """Put other scores in the place of the rewards (E), group after group; the votes that gave those do not shape what comes of them.

    A penalty on invalid actions and a KL penalty are taken off these as they were off the rewards.
    """
    given = iter(scores)
    groups = [group.with_rewards([next(given) for _ in group.trajectories]) for group in samples.groups]
    return replace(samples, groups=groups, votes=None)


def add_step_advantages(
    samples: TrainingSamples, episodes: Advantages, steps: Sequence[float], weight: float = 1.0
) -> list[list[float]]:
    """Add advantages of steps to `weight` times those of their episodes.

    Args:
        samples: Rollouts with rewards.
        episodes: As `relative_advantages` gives them.
        steps: One for each step, trajectory after trajectory.
        weight: Of the episodes.

    Returns:
        A row for each trajectory, with one advantage for each of its steps.
    """
    given = iter(steps)
    rows = []
    for each, whole in zip(samples.trajectories, episodes, strict=True):
        row = whole if isinstance(whole, Sequence) else [whole] * len(each.steps)
        rows.append([weight * value + next(given) for value in row if not isinstance(value, Sequence)])
    return rows


def by_step(value: Any, steps: int) -> Sequence[float]:
    """The advantage of each step of a trajectory, where `relative_advantages` may have given one for all."""
    return value if isinstance(value, Sequence) else [value] * steps
