"""Checks that environments share: of the arguments they are made with, of the options of `reset`, and of actions."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

from skill_ttrl.errors import EnvError, did_you_mean

RENDER_MODES = ("ansi",)


def check_choice(what: str, value: object, known: Collection[str]) -> None:
    """Raise `EnvError` if the name of a thing (`what`, such as "engine") is not one of the known ones."""
    if value not in known:
        raise EnvError(f"There is no {what} {value!r:.60}.{did_you_mean(str(value)[:50], known)}")


def check_episode(max_steps: object = 1, reward: object = 1.0, render_mode: object = None, **others: object) -> None:
    """Raise `EnvError` if the length of an episode, the reward of success or the render mode is not usable; ignore `others`."""
    if isinstance(max_steps, bool) or not isinstance(max_steps, int) or max_steps < 1:
        raise EnvError(f"max_steps must be a whole number of at least 1, found {max_steps!r:.60}.")
    if isinstance(reward, bool) or not isinstance(reward, int | float) or not math.isfinite(reward):
        raise EnvError(f"reward must be a finite number, found {reward!r:.60}.")
    if render_mode not in (None, *RENDER_MODES):
        raise EnvError(f"render_mode must be 'ansi' or None, found {render_mode!r:.60}.")


def check_flags(**flags: object) -> None:
    """Raise `EnvError` if an argument is neither True nor False."""
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise EnvError(f"{name} must be True or False, found {value!r:.60}.")


def reset_options(env_id: str, options: object, known: Collection[str]) -> dict[str, Any]:
    """The options of a `reset`, as a dict of its own.

    Raises:
        EnvError: they are no dict, or one of them is not known.
    """
    if options is not None and not isinstance(options, Mapping):
        raise EnvError(f"The options of {env_id} are a dict, found {type(options).__name__}.")
    asked = dict(options or {})
    for option in asked:
        if option not in known:
            raise EnvError(f"{env_id} has no option {repr(option)[:80]}.{did_you_mean(str(option)[:80], known)}")
    return asked


def check_action(env_id: str, action: object) -> None:
    """Raise `EnvError` if an action is no text."""
    if not isinstance(action, str):
        raise EnvError(f"An action of {env_id} is a str, found {type(action).__name__}: {repr(action)[:80]}.")
