"""Answers of an environment, fit for prompts and files: observations, rewards, infos, and the step they make."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from skill_ttrl.errors import EnvError
from skill_ttrl.sanitize import replace_surrogates
from skill_ttrl.signals import pass_signals
from skill_ttrl.types import Step, Task
from skill_ttrl.voting.rewards import as_reward


def make_step(
    observation: str, action: str, answer: tuple[Any, Any, Any, Any, Any], reset_info: Mapping[str, Any], **more: Any
) -> tuple[str, Step]:
    """The step that an environment's answer to an action makes, and the observation after it.

    `observation` was seen before; `answer` is what `step` returned: observation, reward, terminated, truncated, info. For
    `reset_info` see `serializable_info`; `more` are other fields of the step.

    Raises:
        EnvError: the observation is no text.
        ValueError: the reward is a text, not finite, or too large to learn from (`rewards.as_reward`).
    """
    seen, reward, terminated, truncated, info = answer
    seen, plain = text_of(seen), serializable_info(info, reset_info)
    try:
        reward = as_reward(reward)
    except ValueError as error:
        raise ValueError(f"the environment's reward is {error}") from None
    return seen, Step(observation, action, reward, bool(terminated), bool(truncated), info=plain, **more)


def reset_options(task: Task) -> dict[str, Any]:
    """The `options` of an environment's `reset`; the true answer is among them only where the task still carries it."""
    return {**task.options, **({} if task.ground_truth is None else {"ground_truth": task.ground_truth})}


def failure(raised: BaseException) -> str:
    """The exception of foreign code as an episode's `error`.

    Raises:
        KeyboardInterrupt: `raised` itself, where the user's Ctrl-C raised it.
    """
    pass_signals(raised)
    return replace_surrogates(f"{type(raised).__name__}: {raised}")


def text_of(value: Any, what: str = "The environment's observation") -> str:
    """A text of foreign code, fit for prompts and files: halves of characters (lone surrogates) become U+FFFD.

    Raises:
        EnvError: it is no text; `what` names it.
    """
    if not isinstance(value, str):
        raise EnvError(f"{what} must be a str, found {type(value).__name__}: {value!r:.80}.")
    return replace_surrogates(value)


def serializable_info(info: Mapping[str, Any], reset_info: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The part of an `info` that can be written down: texts, numbers, truth values and None.

    Args:
        info: as the environment gave it.
        reset_info: that of the episode's `reset`. Texts that it has too are left out: an environment says with every step which task
            is played and where its file lies, which need not be in every step that is kept, nor on another machine. `answer` is
            what votes, `state` where the episode stands: they stay whatever stood at the start.
    """
    known = {key: value for key, value in (reset_info or {}).items() if key not in ("answer", "state")}
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


def stated(info: Mapping[str, Any], key: str) -> str:
    """A text in an `info`, such as `source`, where the task is from, or `task`, what is to be done; empty where there is none."""
    text = info.get(key)
    return text if isinstance(text, str) else ""


def admissible_actions(info: Mapping[str, Any]) -> tuple[str, ...]:
    """The actions that an `info` lists (`admissible_commands`)."""
    listed = info.get("admissible_commands")
    texts = tuple(map(str, listed)) if isinstance(listed, list | tuple) else ()
    return texts if "".join(texts).isascii() else tuple(map(replace_surrogates, texts))
