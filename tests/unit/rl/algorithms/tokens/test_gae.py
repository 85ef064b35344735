"""GAE as an algorithm: advantages over the steps of an episode, returns for the critic, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from skill_ttrl.config import RLConfig
from skill_ttrl.rl.algorithms import TrainingSamples
from skill_ttrl.rl.batch import pack
from skill_ttrl.rl.learner import UpdateRule
from skill_ttrl.types import Completion, Group, Step, Task, Trajectory

TASK = Task("t", "env")


def step(tokens: int) -> Step:
    return Step("", "", 0.0, False, False, (1, 2), Completion("", (3,) * tokens, (-1.0,) * tokens, "stop"))


def estimate(options: dict[str, Any], values: list[float]) -> tuple[list[float], list[float]]:
    """(advantages, returns) of the tokens of an episode that earns 1 in two steps of two tokens, whose values are given."""
    groups = [Group(TASK, (Trajectory(TASK, (step(2), step(2)), None, "terminated", 1.0),))]
    batch = pack(groups)
    values_F = torch.zeros(len(batch.tokens_F))
    values_F[batch.trained_F] = torch.tensor(values)
    batch = replace(batch, values_F=values_F)
    config = RLConfig(algorithm={"type": "gae", **options}, critic={})  # type: ignore[arg-type]
    rule = UpdateRule(config, sampler_is_learner=True)
    rule.algorithm.whitens = False  # type: ignore[attr-defined]
    found, _ = rule.estimate(TrainingSamples(groups, batch=batch), batch)
    assert found.returns_F is not None
    return found.advantages_F[found.trained_F].tolist(), found.returns_F[found.trained_F].tolist()


VALUES = [0.5, 0.25, 0.75, 0.5]


def test_over_an_episode_the_value_of_the_next_step_stands_for_the_rest() -> None:
    advantages, returns = estimate({"lam": 0.0}, VALUES)
    assert advantages == pytest.approx([-0.25, 0.5, -0.25, 0.5])
    assert returns == pytest.approx([0.25, 0.75, 0.5, 1.0])
    advantages, _ = estimate({"lam": 0.0, "level": "step"}, VALUES)
    assert advantages == pytest.approx([-0.25, 0.75, -0.25, 0.5]), "each step ends with the outcome"
