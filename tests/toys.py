"""Two toys with a known optimum, a policy of some thousand parameters, and a loop that trains it with the learner's own parts.

Prompts and actions are single tokens. Samples are drawn from the policy's exact distribution, which is also what it is measured by.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from transformers import Qwen2Config, Qwen2ForCausalLM

from skill_ttrl.config import RLConfig, RuntimeConfig, load_config
from skill_ttrl.rl.device import make_accelerator
from skill_ttrl.rl.learner import LocalLearner, UpdateRule
from skill_ttrl.rl.policy import Policy
from skill_ttrl.train.defaults import with_algorithm_defaults
from skill_ttrl.types import Completion, Group, Step, Task, Trajectory
from skill_ttrl.voting import ballot_of, vote

VOCABULARY = 8
SAMPLES = 16
"""Rollouts of each task."""
PLAIN: dict[str, Any] = {
    "reward": "env", "learning_rate": 0.02, "betas": [0.9, 0.95], "weight_decay": 0.0, "warmup_steps": 0,
    "lr_scheduler": "constant", "kl_coef": 0.0, "mini_batch_size": None, "micro_batch_size": 256, "grad_clip": 10.0,
}  # fmt: skip
PATHS: Mapping[str, tuple[tuple[int, ...], ...]] = {"bandit": ((3,), (4,), (5,), (6,)), "two turns": ((3, 4), (5, 3))}
"""By toy, the one sequence of actions that is rewarded, of each task."""


class Tokenizer:
    """All that the policy asks of a tokenizer."""

    pad_token_id = 0


def tiny_policy(weights: Mapping[str, Tensor] | None = None) -> Policy:
    """A random policy, the same at each call, or one with these weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Qwen2ForCausalLM(
            Qwen2Config(
                vocab_size=VOCABULARY,
                hidden_size=16,
                intermediate_size=32,
                num_hidden_layers=1,
                num_attention_heads=2,
                num_key_value_heads=2,
                max_position_embeddings=8,
                tie_word_embeddings=False,
                initializer_range=0.1,
            )
        )
    if weights is not None:
        model.load_state_dict(weights)
    return Policy(model, Tokenizer(), "cpu")


@dataclass(frozen=True)
class Toy:
    """Tasks of as many turns as their rewarded sequence of actions has; each turn's prompt is the task and the actions so far."""

    paths: tuple[tuple[int, ...], ...]

    @torch.no_grad()
    def probabilities(self, policy: Policy, prompts: Sequence[tuple[int, ...]]) -> Tensor:
        """Distribution of the next token after prompts of equal length (N, V)."""
        logits: Tensor = policy.model(input_ids=torch.tensor(prompts)).logits[:, -1]
        return logits.double().softmax(-1)

    def success(self, policy: Policy) -> list[float]:
        """Exact probability of each task's rewarded sequence."""
        found = [1.0] * len(self.paths)
        for turn in range(len(self.paths[0])):
            prompts = [(task, *path[:turn]) for task, path in enumerate(self.paths)]
            table = self.probabilities(policy, prompts)
            found = [p * float(row[path[turn]]) for p, row, path in zip(found, table, self.paths, strict=True)]
        return found

    def rollouts(self, policy: Policy, generator: torch.Generator, samples: int = SAMPLES) -> list[Group]:
        """Sample each task; rewards are 1 for the rewarded sequence, else 0."""
        rows: list[tuple[int, ...]] = [(task,) for task in range(len(self.paths)) for _ in range(samples)]
        steps: list[list[Step]] = [[] for _ in rows]
        for turn in range(len(self.paths[0])):
            table = self.probabilities(policy, rows)
            picked = torch.multinomial(table, 1, generator=generator)[:, 0]
            for place, action in enumerate(picked.tolist()):
                before, after = rows[place], (*rows[place], action)
                earned = float(after[1:] == self.paths[after[0]])
                done = Completion(str(action), (action,), (float(table[place, action].log()),), "stop")
                last = turn + 1 == len(self.paths[0])
                info = {"state": str(after), "won": earned == 1.0}
                steps[place].append(
                    Step(
                        str(before), str(action), earned * last, last, False, before, done, info, action_status="valid"
                    )
                )
                rows[place] = after
        groups = []
        for task, path in enumerate(self.paths):
            member = Task(str(task), "toy")
            played = range(task * samples, (task + 1) * samples)
            tries = [
                Trajectory(
                    member,
                    tuple(steps[place]),
                    " ".join(step.action for step in steps[place]),
                    "terminated",
                    float(rows[place][1:] == path),
                    start_state=str((task,)),
                )
                for place in played
            ]
            groups.append(Group(member, tuple(tries)))
        return groups


TOYS = {name: Toy(paths) for name, paths in PATHS.items()}


def settings(rl: Mapping[str, Any]) -> RLConfig:
    """The settings of a toy's training, with the defaults that an algorithm brings where `rl` says nothing."""
    algorithm = dict(rl)
    plain = {key: value for key, value in PLAIN.items() if key not in algorithm}
    return with_algorithm_defaults(load_config({"phases": ["rl"], "rl": {**plain, **algorithm}}).rl)


Rewards = Callable[[Group, random.Random], list[float]]


def train(
    toy: Toy,
    rl: Mapping[str, Any],
    *,
    steps: int,
    goal: float = 0.9,
    weights: Mapping[str, Tensor] | None = None,
    rewards: Rewards | None = None,
    seed: int = 0,
) -> tuple[float, int, dict[str, Tensor]]:
    """Train until the least task succeeds with probability `goal`, at most so many steps.

    Args:
        toy: What is learned.
        rl: Settings, beside `PLAIN`.
        steps: Most updates.
        goal: Probability of success of the hardest task.
        weights: To begin with; None: random ones.
        rewards: In place of the toy's own.
        seed: Of the samples.

    Returns:
        (probability of success of the hardest task, updates, weights).
    """
    policy, config = tiny_policy(weights), settings({"prompts_per_step": len(toy.paths), **rl})
    learner = LocalLearner(
        policy,
        config,
        make_accelerator(RuntimeConfig(device="cpu", precision="fp32")),
        total_steps=steps,
        max_response_tokens=1,
    )
    rule = UpdateRule(config, sampler_is_learner=True)
    generator, draw = torch.Generator().manual_seed(seed), random.Random(seed)
    reached = min(toy.success(policy))
    done = 0
    while done < steps and reached < goal:
        groups = toy.rollouts(policy, generator)
        votes = [vote("majority", ballot_of(group)) for group in groups]
        if config.voted:
            groups = [group.with_rewards([*held.sample_rewards]) for group, held in zip(groups, votes, strict=True)]
        elif rewards is not None:
            groups = [group.with_rewards(rewards(group, draw)) for group in groups]
        rule(learner, groups, votes, step=done, seed=seed, temperature=1.0)
        reached, done = min(toy.success(policy)), done + 1
    return reached, done, {name: value.detach().clone() for name, value in policy.model.state_dict().items()}


@cache
def warm_start(toy: str) -> Mapping[str, Tensor]:
    """Weights of a policy that is right more often than anything else, as a majority vote needs it."""
    return train(TOYS[toy], {}, steps=60, goal=0.6)[2]
