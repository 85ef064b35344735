"""Combinations of algorithm, loss, correction and KL that make no sense, refused with the reason before anything is sampled."""

from __future__ import annotations

from collections.abc import Iterator

from skill_ttrl.config import RLConfig
from skill_ttrl.errors import ConfigError
from skill_ttrl.rl.advantages import is_stepwise
from skill_ttrl.rl.algorithms import ALGORITHMS, Requirement, build_algorithm
from skill_ttrl.rl.learn import VOTED


def check_algorithm(rl: RLConfig, *, vote_strategy: str, action_parser: str, multi_turn: bool) -> None:
    """Check that the algorithm exists, and that the run can give the algorithm its inputs.

    Args:
        rl: The settings, with the algorithm's own defaults.
        vote_strategy: `vote.strategy`; all but `majority` shape the advantages of whole rollouts.
        action_parser: `agent.projection`; with `none` no action is ever invalid.
        multi_turn: Rollouts may have several steps.

    Raises:
        ConfigError: there is no such algorithm, an option is wrong, or the combination makes no sense.
    """
    algorithm = build_algorithm(rl.algorithm)
    problems = [
        *_missing_inputs(rl, multi_turn),
        *_vote_problems(rl, vote_strategy),
        *_step_problems(rl, algorithm, vote_strategy),
    ]
    if rl.invalid_penalty and action_parser == "none":
        problems.append(
            f"rl.invalid_penalty={rl.invalid_penalty:g}, but with agent.projection=none no action is ever found invalid. "
            "Set agent.projection=action, or rl.invalid_penalty=0."
        )
    if problems:
        raise ConfigError("\n".join(problems))


def _missing_inputs(rl: RLConfig, multi_turn: bool) -> Iterator[str]:
    """A line for each input that the algorithm requires and the run does not have."""
    name = rl.algorithm["type"]
    requires: frozenset[Requirement] = getattr(ALGORITHMS.get(name), "requires", frozenset())
    if "votes" in requires and rl.reward != VOTED:
        yield f"rl.algorithm={name} learns from votes, but rl.reward is {rl.reward!r}. Set rl.reward={VOTED}."
    if {"episodes", "states"} & requires and not multi_turn:
        yield (
            f"rl.algorithm={name} compares steps of episodes, but agent.max_turns is 1: each rollout has a single step. "
            "Use an environment of several turns (alfworld, webshop), or rl.algorithm=grpo."
        )


def _vote_problems(rl: RLConfig, vote_strategy: str) -> Iterator[str]:
    """A line where the algorithm cannot follow the voting strategy."""
    name = rl.algorithm["type"]
    known: frozenset[str] | None = getattr(ALGORITHMS.get(name), "vote_strategies", None)
    if rl.reward == VOTED and known is not None and vote_strategy not in known:
        yield (
            f"rl.algorithm={name} cannot follow vote.strategy={vote_strategy}: it does not shape advantages by votes, or counts "
            f"votes itself. Set vote.strategy to one of {', '.join(sorted(known))}, or rl.algorithm=grpo, which follows all."
        )


def _step_problems(rl: RLConfig, algorithm: object, vote_strategy: str) -> Iterator[str]:
    """A line where steps of an episode differ, and algorithm or vote know whole rollouts only."""
    level = getattr(getattr(algorithm, "options", None), "level", "episode")
    if level != "step" and rl.invalid_penalty == 0:
        return
    asked = f"rl.algorithm.level={level} with rl.invalid_penalty={rl.invalid_penalty:g}"
    if rl.reward == VOTED and vote_strategy != VOTED:
        yield (
            f"{asked} is about single steps, but vote.strategy={vote_strategy} shapes the advantages of whole rollouts. "
            "Use vote.strategy=majority, or rl.algorithm.level=episode and rl.invalid_penalty=0."
        )
    estimate = getattr(algorithm, "estimate", None)
    if level == "episode" and estimate is not None and not is_stepwise(estimate):
        yield (
            f"{asked}: rl.algorithm={rl.algorithm['type']} cannot penalise single steps and let each episode weigh the same. "
            "Use rl.algorithm.level=step, rl.invalid_penalty=0, or rl.algorithm=grpo."
        )
