"""Group-relative algorithms in common: from an estimator over rewards to the advantages of rollouts and their steps."""

from __future__ import annotations

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
