"""GRPO as an algorithm: its options from the flat keys, advantages of rollouts and steps, and what it refuses."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import pytest
import torch

from skill_ttrl.config import RLConfig
from skill_ttrl.errors import ConfigError
from skill_ttrl.rl.algorithms import build_algorithm, check_advantage, make_batch
from skill_ttrl.rl.batch import RolloutBatch
from skill_ttrl.types import Completion, Group, Step, Task, Trajectory, Verdict, VoteResult

PLAIN_VOTE = VoteResult(None, 0.0, (False,) * 2)

PLAIN: dict[str, Any] = {"vote_strategy": "majority", "projection": "action"}


def step(verdict: Verdict | None = "valid") -> Step:
    done = Completion("go", (7,), (-0.5,), "stop")
    return Step("", "go", 0.0, False, False, (1, 2), done, verdict=verdict)


def tried(*steps: Step, reward: float = 0.0) -> Trajectory:
    return Trajectory(Task("t", "env"), steps, None, "terminated", reward)


def batch_of(*tries: Trajectory, **rl: Any) -> RolloutBatch:
    chosen = [(Group(tries[0].task, tries), PLAIN_VOTE)]
    return make_batch(chosen, build_algorithm(RLConfig(**rl)), votes_rewarded=False)


def test_the_penalty_is_taken_off_single_steps() -> None:
    good, bad = tried(step(), step("invalid"), reward=1.0), tried(step("repaired"), reward=0.0)
    batch = batch_of(good, bad, invalid_penalty=0.5)
    # Scores 1 0.5 | 0: mean 3/8, variance ((5/8)^2 + (1/8)^2) / 2 + (3/8)^2 = 22/64.
    assert batch.advantages_N.tolist() == pytest.approx([5 / 22**0.5, 1 / 22**0.5, -3 / 22**0.5], abs=1e-5)
    plain = batch_of(good, bad).advantages_N.tolist()
    assert plain == pytest.approx([0.5**0.5, 0.5**0.5, -(0.5**0.5)], abs=1e-5)
    rows = batch_of(good, bad, group_statistics="steps").advantages_N.tolist()
    assert rows == pytest.approx([(1 / 3) ** 0.5] * 2 + [-2 * (1 / 3) ** 0.5], abs=1e-5)


def unaware(rewards: Sequence[float], groups: Sequence[Hashable], epsilon: float) -> torch.Tensor:
    """An advantage that knows of no episodes."""
    return torch.tensor(rewards)


@pytest.mark.parametrize(
    ("rl", "other", "words"),
    [
        ({"invalid_penalty": 0.1, "advantage": f"{__name__}:unaware"}, {}, "does not take `episodes`"),
        ({"group_statistics": "steps", "reward": "majority"}, {"vote_strategy": "harmonic"}, "whole tries"),
        ({"invalid_penalty": 0.1}, {"projection": "none"}, "projection=none no action is ever found invalid"),
        ({"advantage": "grop"}, {}, "Did you mean 'grpo'"),
    ],
)
def test_what_an_advantage_cannot_do_is_refused_before_a_run(rl: Any, other: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check_advantage(RLConfig.model_validate({"reward": "env"} | rl), **PLAIN | other)


def test_an_advantage_of_ones_own_is_taken_where_it_can_do_what_is_asked() -> None:
    own = f"{__name__}:unaware"
    for rl in ({}, {"group_statistics": "steps", "invalid_penalty": 0.5}):
        check_advantage(RLConfig.model_validate({"reward": "env", "advantage": own} | rl), **PLAIN)
    good = tried(step("invalid"), step(), reward=1.0)
    batch = batch_of(good, advantage=own, group_statistics="steps", invalid_penalty=0.5)
    assert batch.advantages_N.tolist() == [0.5, 1.0]
