"""Does an environment keep the text contract? One short episode tells, before a run does it a thousand times."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import gymnasium

from skill_ttrl.errors import EnvError, SkillTTRLError
from skill_ttrl.signals import FAILURES, pass_signals
from skill_ttrl.types import Task

T = TypeVar("T")
_PROBE = "Is this an action? <answer>42</answer>"


def check_text_env(env: gymnasium.Env[Any, Any], task: Task | None = None) -> None:
    """Play one step of `task` (or of seed 0) with an ordinary text and look at everything that comes back.

    The environment is left in the middle of an episode: reset it before use.

    Raises:
        EnvError: what is wrong, in the environment's name.
    """
    name = type(env.unwrapped).__name__
    seed = task.seed if task is not None and task.seed is not None else 0
    options = dict(task.options) if task is not None else None
    result = _call(lambda: env.reset(seed=seed, options=options), f"{name}.reset(seed={seed}, options={options})")
    if not isinstance(result, tuple) or len(result) != 2:
        raise EnvError(f"{name}.reset must return (observation, info), found {_kind(result)}.")
    _check_text(result[0], f"{name}.reset")
    _check_info(result[1], f"{name}.reset")

    outcome: Any = _call(lambda: env.step(_PROBE), f"{name}.step({_PROBE!r})")
    if not isinstance(outcome, tuple) or len(outcome) != 5:
        raise EnvError(
            f"{name}.step must return (observation, reward, terminated, truncated, info), found {_kind(outcome)}."
        )
    observation, reward, terminated, truncated, info = outcome
    _check_text(observation, f"{name}.step")
    try:
        finite = math.isfinite(reward)
    except TypeError:
        finite = False
    if not finite:
        raise EnvError(f"{name}.step must return a finite number as reward, found {reward!r}.")
    for label, flag in (("terminated", terminated), ("truncated", truncated)):
        if type(flag).__name__ not in {"bool", "bool_"}:
            raise EnvError(f"{name}.step must return a bool as {label}, found {_kind(flag)}.")
    _check_info(info, f"{name}.step")


def names_states(env: gymnasium.Env[Any, Any], task: Task) -> bool:
    """True if an environment that keeps the contract names its exact state (`info["state"]`), at the start and with a step of `task`.

    It is left in the middle of an episode, as by `check_text_env`.
    """
    _, begun = env.reset(seed=task.seed or 0, options=dict(task.options))
    return "state" in begun and "state" in env.step(_PROBE)[4]


def close_env(env: gymnasium.Env[Any, Any]) -> None:
    """Close an environment; where it cannot be closed, warn: what was played in it is not lost for that."""
    try:
        env.close()
    except FAILURES as error:
        pass_signals(error)
        name = type(env.unwrapped).__name__
        warnings.warn(f"{name} could not be closed: {type(error).__name__}: {error}.", stacklevel=2)


def _call(function: Callable[[], T], what: str) -> T:
    """Errors of the user's own code become one typed error that names the call; ours pass."""
    try:
        return function()
    except SkillTTRLError:
        raise
    except FAILURES as error:
        pass_signals(error)
        raise EnvError(
            f"{what} raised {type(error).__name__}: {error}. An environment must take any text as an action and the "
            "options of its own tasks."
        ) from error


def _check_text(observation: Any, where: str) -> None:
    if not isinstance(observation, str):
        raise EnvError(
            f"{where} must return a str as observation, found {_kind(observation)}. This framework plays text."
        )


def _check_info(info: Any, where: str) -> None:
    if not isinstance(info, Mapping):
        raise EnvError(f"{where} must return a dict as info, found {_kind(info)}.")
    try:
        json.dumps(dict(info))
    except (TypeError, ValueError) as error:
        raise EnvError(f"{where} must return info that JSON can write: {error}.") from None
    state = info.get("state", "-")
    if not isinstance(state, str) or not state:
        raise EnvError(
            f'{where} must return a digest of its state as info["state"], a str, or none; found {state!r:.80}.'
        )


def _kind(value: Any) -> str:
    return f"{len(value)} values" if isinstance(value, tuple) else type(value).__name__
