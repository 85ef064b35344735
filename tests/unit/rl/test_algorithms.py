"""GRPO as an algorithm: its options from the flat keys, advantages of rollouts and steps, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from pydantic import BaseModel, ConfigDict
from torch import Tensor

from skill_ttrl.config import RLConfig
from skill_ttrl.errors import ConfigError
from skill_ttrl.rl.algorithms import (
    GRPO,
    GRPOOptions,
    LossInputs,
    TrainingSamples,
    build_algorithm,
    check_advantage,
    make_batch,
)
from skill_ttrl.rl.batch import Advantages, RolloutBatch
from skill_ttrl.rl.learner import LocalLearner
from skill_ttrl.rl.losses import aggregate
from skill_ttrl.rl.policy import Policy
from skill_ttrl.types import Completion, Group, Step, Task, Trajectory, Verdict, VoteResult

PLAIN_VOTE = VoteResult(None, 0.0, (False,) * 2)

PLAIN: dict[str, Any] = {"vote_strategy": "majority", "projection": "action"}


def per_item(batch: RolloutBatch) -> list[float]:
    """Advantage of the first token of each item."""
    values: list[float] = batch.advantages_F[batch.starts_N + batch.prompt_lengths_N].tolist()
    return values


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
    assert per_item(batch) == pytest.approx([5 / 22**0.5, 1 / 22**0.5, -3 / 22**0.5], abs=1e-5)
    plain = per_item(batch_of(good, bad))
    assert plain == pytest.approx([0.5**0.5, 0.5**0.5, -(0.5**0.5)], abs=1e-5)
    rows = per_item(batch_of(good, bad, group_statistics="steps"))
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
    assert per_item(batch) == [0.5, 1.0]


class FirstTokensOptions(BaseModel):
    """Options of `FirstTokens`."""

    model_config = ConfigDict(extra="forbid")

    tokens: int = 1
    scale: float = 1.0


class FirstTokens:
    """Rewards the first tokens of each completion: an algorithm with advantages for each token, options and a loss of its own."""

    options_type = FirstTokensOptions
    zero_without_advantage = True

    def __init__(self, options: FirstTokensOptions) -> None:
        self.options = options

    def advantages(self, samples: TrainingSamples) -> Advantages:
        first = self.options.tokens
        return [
            [
                [reward * (place < first) for place in range(len(step.completion.token_ids if step.completion else ()))]
                for step in trajectory.steps
            ]
            for trajectory, reward in zip(samples.trajectories, samples.rewards, strict=True)
        ]

    def loss(self, inputs: LossInputs) -> tuple[Tensor, dict[str, Tensor]]:
        loss = aggregate(-inputs.advantages * inputs.log_probs, inputs.response_mask, "token-mean", inputs.denominators)
        return self.options.scale * loss, {}


@pytest.mark.parametrize("scale", [1.0, -1.0])
def test_an_algorithm_of_ones_own_trains_a_step_with_advantages_for_each_token(
    scale: float, make_policy: Callable[..., Policy], make_groups: Callable[..., list[Group]], accelerator: Accelerator
) -> None:
    groups = [group.with_rewards([1.0] * len(group.trajectories)) for group in make_groups(turns=2)]
    algorithm = build_algorithm({"type": f"{__name__}:FirstTokens", "tokens": 1, "scale": scale})
    batch = make_batch([(group, PLAIN_VOTE) for group in groups], algorithm, votes_rewarded=False)
    starts_N = batch.starts_N + batch.prompt_lengths_N
    assert len(batch) == 24 and bool((batch.advantages_F[starts_N] == 1).all())
    assert float(batch.advantages_F.sum()) == len(batch), "all other tokens have none"

    policy = make_policy()
    settings = RLConfig(learning_rate=1e-2, warmup_steps=0, prompts_per_step=3, mini_batch_prompts=None, kl_coef=0.0)
    (micro_batch,) = batch.micro_batches(torch.arange(len(batch)), len(batch), 0)

    def of_first_tokens() -> float:
        with torch.no_grad():
            return float(policy.token_logprobs(micro_batch)[0][:, 0].sum())

    before = of_first_tokens()
    learner = LocalLearner(policy, settings, accelerator, total_steps=1, algorithm=algorithm)
    metrics = learner.update(batch, step=0, seed=0, temperature=1.0)
    assert metrics["updates"] == 1 and (of_first_tokens() > before) == (scale > 0)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"type": "grop"}, "Did you mean 'grpo'"),
        ({"type": "grpo", "clip_ratoi": 0.1}, "clip_ratoi"),
        ({"type": f"{__name__}:FirstTokens", "tokens": "many"}, "tokens"),
    ],
)
def test_an_algorithm_with_wrong_options_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        build_algorithm(options)


def test_the_section_names_an_algorithm_with_options_of_its_own() -> None:
    settings = RLConfig(algorithm={"type": f"{__name__}:FirstTokens", "tokens": 2})
    algorithm = build_algorithm(settings)
    assert isinstance(algorithm, FirstTokens) and algorithm.options.tokens == 2
    with pytest.raises(ConfigError, match="toknes"):
        build_algorithm(RLConfig(algorithm={"type": f"{__name__}:FirstTokens", "toknes": 2}))


def test_the_flat_keys_are_the_options_of_grpo() -> None:
    settings = RLConfig(clip_ratio_high=0.28, dual_clip=None, loss_aggregation="seq-mean-token-sum")
    from_keys, from_options = (
        build_algorithm(settings),
        build_algorithm(
            {"type": "grpo", "clip_ratio_high": 0.28, "dual_clip": None, "loss_aggregation": "seq-mean-token-sum"}
        ),
    )
    assert isinstance(from_keys, GRPO) and isinstance(from_options, GRPO)
    assert from_keys.options == from_options.options
    assert GRPOOptions() == GRPOOptions.from_settings(RLConfig()), "the same defaults"
