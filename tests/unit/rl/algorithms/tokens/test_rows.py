"""Algorithms that go from token to token, on episodes of several steps with tokens that are not trained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from skill_ttrl.compat.trainer import SkillTTRLTrainer
from skill_ttrl.config import RLConfig, load_config
from skill_ttrl.errors import ConfigError
from skill_ttrl.rl.algorithms import TrainingSamples
from skill_ttrl.rl.batch import pack
from skill_ttrl.rl.learner import UpdateRule
from skill_ttrl.types import Completion, Group, Step, Task, Trajectory

TASK = Task("t", "env")


def step(tokens: int, mask: Sequence[bool] | None = None, *, invalid: bool = False) -> Step:
    done = Completion(
        "", tuple(range(1, tokens + 1)), (-1.0,) * tokens, "stop", completion_mask=None if mask is None else tuple(mask)
    )
    return Step("", "", 0.0, False, False, (1, 2), done, action_status="invalid" if invalid else "valid")


def tried(reward: float, *steps: Step) -> Trajectory:
    return Trajectory(TASK, steps, None, "terminated", reward)


def advantages(
    algorithm: Any,
    *groups: Sequence[Trajectory],
    whitened: bool = False,
    penalty: float = 0.0,
) -> list[list[float]]:
    """Advantages of the response tokens of each item."""
    found = [Group(TASK, tuple(tries)) for tries in groups]
    config = RLConfig(algorithm=algorithm, invalid_action_penalty_coef=penalty)
    batch = pack(found, invalid_action_penalty_coef=penalty)
    samples = TrainingSamples(found, None, penalty, batch)
    rule = UpdateRule(config, sampler_is_learner=True)
    if not whitened:
        rule.algorithm.whitens = False  # type: ignore[attr-defined]
    batch, _ = rule.estimate(samples, batch)
    starts, ends = batch.starts_N + batch.prompt_lengths_N, batch.starts_N + batch.lengths_N
    return [
        [round(value, 5) for value in batch.advantages_F[a:b].tolist()]
        for a, b in zip(starts.tolist(), ends.tolist(), strict=True)
    ]


def returns_of(options: dict[str, Any], penalty: float = 0.0) -> list[float]:
    """Returns of an episode of two steps of two tokens that earns 1, its first step invalid."""
    first, second, other = advantages(
        {"type": "reinforce_plus_plus", **options},
        [tried(1.0, step(2, invalid=True), step(2)), tried(0.0, step(1))],
        penalty=penalty,
    )
    assert other == [0.0]
    return first + second


def test_reinforce_plus_plus_discounts_tokens_and_steps() -> None:
    assert returns_of({"gamma": 0.5}) == [0.125, 0.25, 0.5, 1.0]
    assert returns_of({}, penalty=0.25) == [0.75, 0.75, 1.0, 1.0]


def test_whitened_advantages_have_mean_0_and_variance_1_over_tokens() -> None:
    for algorithm in ("reinforce_plus_plus", "reinforce_plus_plus_baseline"):
        rows = advantages(algorithm, [tried(1.0, step(5)), tried(0.0, step(2)), tried(0.5, step(1))], whitened=True)
        values = torch.tensor([value for row in rows for value in row])
        assert float(values.mean()) == pytest.approx(0, abs=1e-4) and float(values.std()) == pytest.approx(1, abs=1e-4)
        assert rows[0][0] > rows[2][0] > rows[1][0]


@pytest.mark.parametrize("name", ["reinforce_plus_plus", "gae"])
def test_texts_without_tokens_are_refused_where_tokens_count(name: str, tmp_path: Path) -> None:
    config = load_config({"rl": {"algorithm": name, **({"critic": {}} if name == "gae" else {})}})
    with pytest.raises(ConfigError, match="texts without tokens"):
        SkillTTRLTrainer(config, tmp_path).train_offline(["1+1"], [[r"\boxed{2}", r"\boxed{3}"]])


def gae_of(options: dict[str, Any]) -> tuple[list[float], list[float]]:
    """(advantages, returns) of the tokens of an episode that earns 1 in two steps of two tokens, whose values are given."""
    groups = [Group(TASK, (tried(1.0, step(2), step(2)),))]
    batch = pack(groups)
    values_F = torch.zeros(len(batch.tokens_F))
    values_F[batch.trained_F] = torch.tensor([0.5, 0.25, 0.75, 0.5])
    batch = replace(batch, values_F=values_F)
    config = RLConfig(algorithm={"type": "gae", "lam": 0.0, **options}, critic={})  # type: ignore[arg-type]
    rule = UpdateRule(config, sampler_is_learner=True)
    rule.algorithm.whitens = False  # type: ignore[attr-defined]
    found, _ = rule.estimate(TrainingSamples(groups, batch=batch), batch)
    assert found.returns_F is not None
    return found.advantages_F[found.trained_F].tolist(), found.returns_F[found.trained_F].tolist()


def test_gae_over_an_episode_takes_the_value_of_the_next_step_for_the_rest() -> None:
    advantages, returns = gae_of({})
    assert advantages == pytest.approx([-0.25, 0.5, -0.25, 0.5])
    assert returns == pytest.approx([0.25, 0.75, 0.5, 1.0])
