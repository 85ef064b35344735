"""One episode of a player that needs no model, and what an environment's answer is taken for."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import gymnasium

from skill_ttrl.agents.players.scripted_agent import Player, any_action, on_action_override
from skill_ttrl.errors import EnvError
from skill_ttrl.signals import FAILURES, pass_signals
from skill_ttrl.skills.bank.changes import replace_surrogates
from skill_ttrl.types import Step, StopReason, Task, Trajectory, derive_seed
from skill_ttrl.voting.rewards import as_reward

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
    begun: Mapping[str, Any] = {}
    options = {**task.options, **getattr(player, "needs", {})}
    if task.reference is not None:
        options["reference"] = task.reference
    try:
        observation, info = env.reset(
            seed=derive_seed(seed, "env", task.id) if task.seed is None else task.seed, options=options
        )
        observation = observed(observation)
        begun = plain(info)
        player.start(observation, info, derive_seed(seed, "player", task.id, *([attempt] if attempt else [])))
        draws = random.Random(derive_seed(seed, "explore", task.id, attempt))
        while len(steps) < max_steps:
            advice, admissible = _text(player.act(observation, info), "The agent's action"), listed_actions(info)
            action = any_action(draws, info) if explore and draws.random() < explore else advice
            if action != advice:
                on_action_override(player, action)
            seen, reward, terminated, truncated, info = env.step(action)
            seen = observed(seen)
            steps.append(
                Step(
                    observation,
                    action,
                    finite(reward),
                    bool(terminated),
                    bool(truncated),
                    info=plain(info, begun) | ({ADVICE: advice} if explore else {}),
                    admissible=admissible,
                )
            )
            observation = seen
            if terminated or truncated:
                stop = "terminated" if terminated else "truncated"
                break
    except FAILURES as raised:
        stop, error = "error", failure(raised)
    answer = steps[-1].info.get("answer") if steps else None
    return Trajectory(
        task,
        tuple(steps),
        None if answer is None else str(answer),
        stop,
        error=error,
        last_observation=observation if steps else "",
        source=source_of(begun),
        goal=goal_of(begun),
    )


def failure(raised: BaseException) -> str:
    """The exception of foreign code as an episode's `error`.

    Raises:
        KeyboardInterrupt: `raised` itself, where the user's Ctrl-C raised it.
    """
    pass_signals(raised)
    return replace_surrogates(f"{type(raised).__name__}: {raised}")


def observed(value: Any) -> str:
    """An environment's observation, fit for prompts and files: halves of characters (lone surrogates) become U+FFFD.

    Raises:
        EnvError: it is no text.
    """
    return _text(value, "The environment's observation")


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str):
        raise EnvError(f"{what} must be a str, found {type(value).__name__}: {value!r:.80}.")
    return replace_surrogates(value)


def finite(reward: Any) -> float:
    """An environment's reward as a number (`rewards.as_reward`).

    Raises:
        ValueError: it is a text, not finite, or too large to learn from.
    """
    try:
        return as_reward(reward)
    except ValueError as error:
        raise ValueError(f"the environment's reward is {error}") from None


def plain(info: Mapping[str, Any], begun: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What of an `info` can be written down: texts, numbers, truth values and None.

    Args:
        info: as the environment gave it.
        begun: that of the episode's `reset`. Texts that it has too are left out: an environment says with every step which task
            is played and where its file lies, which need not be in every step that is kept, nor on another machine. `answer` is
            what votes, and stays whatever stood at the start.
    """
    known = {key: value for key, value in (begun or {}).items() if key != "answer"}
    found = {
        replace_surrogates(str(key)): replace_surrogates(value) if isinstance(value, str) else value
        for key, value in info.items()
    }
    return {
        key: value
        for key, value in found.items()
        if value is None
        or isinstance(value, int | float | bool)
        or (isinstance(value, str) and known.get(key) != value)
    }


def source_of(info: Mapping[str, Any]) -> str:
    """Where an environment says that it has its task from (`source`); empty where it does not."""
    source = info.get("source")
    return source if isinstance(source, str) else ""


def goal_of(info: Mapping[str, Any]) -> str:
    """What an environment says is to be done (`task`); empty where it does not."""
    task = info.get("task")
    return task if isinstance(task, str) else ""


def listed_actions(info: Mapping[str, Any]) -> tuple[str, ...]:
    """The actions that an `info` lists (`admissible_commands`)."""
    listed = info.get("admissible_commands")
    return tuple(replace_surrogates(str(action)) for action in listed) if isinstance(listed, list | tuple) else ()
