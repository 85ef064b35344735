"""One episode of a player that needs no model."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import gymnasium

from skill_ttrl.agents.players.scripted_agent import Player, any_action, on_action_override
from skill_ttrl.rollout.info import (
    admissible_actions,
    failure,
    make_step,
    reset_options,
    serializable_info,
    stated,
    text_of,
)
from skill_ttrl.signals import FAILURES
from skill_ttrl.types import Step, StopReason, Task, Trajectory, derive_seed

ADVICE = "advice"
"""Key of a step's `info`: what an exploring player would have done there."""


def play_episode(
    env: gymnasium.Env[str, str],
    task: Task,
    player: Player,
    *,
    seed: int,
    attempt: int = 0,
    explore: float = 0.0,
    max_steps: int = 1000,
) -> Trajectory:
    """Play a task to its end.

    A player that explores is asked in every step, so that what it says is always for the state that it is in; in some of them
    another action is taken all the same. So there are examples of how to get out of states that it would never get into.

    An exception of the environment or the player is the episode's outcome (`stop_reason` "error"), not the caller's.

    Args:
        env: it is reset.
        task: what is played.
        player: who plays.
        seed: of the environment, where the task has none, and of the player.
        attempt: number of the try at this task: all begin alike, and the player's choices differ.
        explore: chance of a step, in [0, 1], that any of the admissible actions is taken, all equally likely, whatever the player
            says. Above 0, what it said stands in the `info` of every step (`ADVICE`).
        max_steps: bound for environments that set none.
    """
    steps: list[Step] = []
    stop: StopReason = "max_turns"
    observation, error = "", None
    reset_info: Mapping[str, Any] = {}
    try:
        observation, info = _reset(env, task, player, seed)
        reset_info = serializable_info(info)
        player.start(observation, info, derive_seed(seed, "player", task.id, *([attempt] if attempt else [])))
        draws = random.Random(derive_seed(seed, "explore", task.id, attempt))
        while len(steps) < max_steps and stop == "max_turns":
            advice, admissible = text_of(player.act(observation, info), "The agent's action"), admissible_actions(info)
            action = any_action(draws, info) if explore and draws.random() < explore else advice
            if action != advice:
                on_action_override(player, action)
            answer = env.step(action)
            observation, step = make_step(observation, action, answer, reset_info, admissible=admissible)
            info = answer[-1]
            steps.append(replace(step, info={**step.info, ADVICE: advice}) if explore else step)
            if step.terminated or step.truncated:
                stop = "terminated" if step.terminated else "truncated"
    except FAILURES as raised:
        stop, error = "error", failure(raised)
    answered = steps[-1].info.get("answer") if steps else None
    return Trajectory(
        task,
        tuple(steps),
        None if answered is None else str(answered),
        stop,
        error=error,
        last_observation=observation if steps else "",
        source=stated(reset_info, "source"),
        goal=stated(reset_info, "task"),
    )


def _reset(env: gymnasium.Env[str, str], task: Task, player: Player, seed: int) -> tuple[str, dict[str, Any]]:
    """First observation and `info` of a task, with what the player needs to know of it."""
    options = {**reset_options(task), **getattr(player, "needs", {})}
    own = derive_seed(seed, "env", task.id) if task.seed is None else task.seed
    observation, info = env.reset(seed=own, options=options)
    return text_of(observation), info
