"""Group-relative algorithms in common: from an estimator over rewards to the advantages of rollouts and their steps."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from torch import Tensor

from skill_ttrl.config import Section
from skill_ttrl.errors import ConfigError
from skill_ttrl.rl.advantages import (
    AdvantageEstimator,
    GroupLevel,
    shape_advantages,
    step_advantages,
)
from skill_ttrl.rl.algorithms.contract import AdvantageEstimate, Requirement, TrainingSamples
from skill_ttrl.rl.pack import Advantages
from skill_ttrl.types import equal_rewards


class NoOptions(Section):
    """An algorithm without options."""


class LevelOptions(Section):
    """Options of algorithms that distinguish the steps of an episode."""

    level: GroupLevel = "episode"
    """Unit of a group's statistics where rollouts have several steps. `episode`: each episode weighs the same, however long it
    is. `step`: each step does, so that long ones weigh more (verl-agent, SkillRL)."""


class GroupRelative:
    """An algorithm whose advantages come from rewards and groups alone; subclasses have `estimate`."""

    options_type: ClassVar[type[Section]] = NoOptions
    defaults: ClassVar[Mapping[str, Any]] = {}
    requires: ClassVar[frozenset[Requirement]] = frozenset()

    def __init__(self, options: Any) -> None:
        self.options = options

    @property
    def takes_shaped_votes(self) -> bool:
        """True where votes can shape the advantages (RESTRAIN, Guard): the estimator is asked about one group at a time."""
        return True

    def advantages(self, samples: TrainingSamples) -> AdvantageEstimate:
        """One for each step where steps of an episode differ, else one for each trajectory, shaped by its vote."""
        return AdvantageEstimate(relative_advantages(samples, self.estimate, getattr(self.options, "level", "episode")))

    def estimate(self, rewards: Sequence[float] | Tensor, groups: Sequence[Hashable] | Tensor) -> Tensor:
        """Estimate advantages (N,) from rewards (N,) of these groups (N,)."""
        raise NotImplementedError


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

    Raises:
        ConfigError: steps differ, and a vote shapes the advantages of whole rollouts.
    """
    rows, owners = samples.step_rewards, samples.owners
    if level == "step" or not all(map(equal_rewards, rows)):
        if samples.votes_shape:
            raise ConfigError(
                "The vote shapes the advantages of whole rollouts, and the steps of an episode have advantages of their own. Use "
                "vote.strategy=majority, or rl.algorithm.level=episode and rewards that are the same at every step."
            )
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
        rows.append([weight * value + next(given) for value in by_step(whole, len(each.steps))])
    return rows


def by_step(value: Any, steps: int) -> Sequence[float]:
    """The advantage of each step of a trajectory, where `relative_advantages` may have given one for all."""
    return value if isinstance(value, Sequence) else [value] * steps
