"""Text environments: the space of all strings, and the contract that every environment here follows.

`gymnasium.spaces.Text` refuses ordinary text (its default characters hold no space) and fails in asynchronous vectors;
`TextSpace` takes any `str`. The contract, in Gymnasium's words:

- observations and actions are `str`; **any** action is accepted, since a model may write anything: one that makes no sense
  earns no reward and raises no error;
- `reset(seed=s)` followed by the same actions gives the same episode; `reset(options=...)` plays one given task;
- rewards are finite numbers; `info` holds plain data that JSON can write;
- the true answer never appears in an observation or in `info`.

Optional entries of `info`:

- `admissible_commands`: list of actions;
- `source`: origin of the tasks;
- `won`: True if the episode has succeeded; without it, a return above 0 counts as success;
- `score`: from 0 to 1, 1 for a perfect episode, if this is finer than `won`;
- `exploits`: how often the agent has tried to bypass the task so far;
- `state`: digest of the exact state (`state_digest`), from `reset` and from every `step`. Two states have the same digest if and only
  if the same actions lead to the same rewards and observations from there. Algorithms that compare steps from one state need it
  (`graphgpo`).

A plain `gymnasium.Env` that follows the contract needs nothing from this module; its tasks are seeds. An environment with a list of
tasks has a method `tasks(split)`, as in `TextEnv`. `skill_ttrl.envs.check_text_env` checks the contract.
"""

from __future__ import annotations

import hashlib
import json
import math
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import gymnasium
import numpy as np

from skill_ttrl.errors import EnvError, SkillTTRLError, did_you_mean
from skill_ttrl.sanitize import escape
from skill_ttrl.signals import FAILURES
from skill_ttrl.types import Task

_GYMNASIUM_ADDS = " was raised from the environment creator for "
_PROBE = "Is this an action? <answer>42</answer>"
# Printable ASCII, white space, two- to four-byte UTF-8: what an environment must stand.
_SAMPLE_CHARACTERS = [chr(code) for code in range(32, 127)] + ["\n", "\t", "ä", "ß", "→", "数", "😀"]


def state_digest(*parts: Any) -> str:
    """Compute 16 hexadecimal digits for `info["state"]` from the parts of a state: plain data whose `repr` is its value, sets sorted."""
    return hashlib.blake2b(repr(parts).encode(), digest_size=8).hexdigest()


class TextSpace(gymnasium.Space[str]):
    """Every `str`, the empty one and any length included.

    In a vector its batch is a tuple of strings, which is what Gymnasium does with every space that it does not know. An
    `AsyncVectorEnv` needs `shared_memory=False`.

    Args:
        sample_length: longest text that `sample` draws, in characters. It does not bound what the space contains.
        seed: of `sample`.
    """

    def __init__(self, sample_length: int = 32, seed: int | np.random.Generator | None = None) -> None:
        self.sample_length = sample_length
        super().__init__(seed=seed)

    @property
    def is_np_flattenable(self) -> bool:
        """False: text has no fixed size."""
        return False

    def sample(self, mask: None = None, probability: None = None) -> str:
        """A random text of 0 to `sample_length` characters; masks have no meaning here."""
        length = int(self.np_random.integers(self.sample_length + 1))
        indices = self.np_random.integers(len(_SAMPLE_CHARACTERS), size=length)
        return "".join(_SAMPLE_CHARACTERS[index] for index in indices)

    def contains(self, x: Any) -> bool:
        """True if `x` is a `str`."""
        return isinstance(x, str)

    def __repr__(self) -> str:
        return f"TextSpace(sample_length={self.sample_length})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TextSpace) and self.sample_length == other.sample_length

    def __hash__(self) -> int:
        return hash((TextSpace, self.sample_length))


class TextEnv(gymnasium.Env[str, str]):
    """Base of the environments here: both spaces are text, and it may bring its own tasks.

    A subclass calls `super().__init__()`, writes Gymnasium's `reset` and `step`, and `tasks` where it knows its tasks.
    """

    splits: tuple[str, ...] = ()
    """Names of the parts that `tasks` knows, for an environment whose ids do not begin with them."""
    config_defaults: ClassVar[Mapping[str, Any]] = {}
    """Defaults for config keys that are not set in this environment: `{"agent.template": "episode", "agent.context_mode": "window",
    "agent.action_parser": "action", "agent.max_turns": 20}`. Read from the class, before an instance exists."""
    question_option: ClassVar[str | None] = None
    """Option of `reset` that takes any question in place of a task, for `skillttrl ask`; None: there is none."""
    expensive: bool = False
    """True if steps are slow or go to a server of others. Only the requested episodes are played then: no controls (`eval.controls`)."""

    def __init__(self) -> None:
        self.observation_space = TextSpace()
        self.action_space = TextSpace()

    def tasks(self, split: str | None = None) -> Sequence[Task] | None:
        """The tasks of one part of the data, each to be played by `reset(seed=task.seed, options=task.options)`.

        Args:
            split: name of the part ("train", "test"); None for all.

        Returns:
            Tasks in a fixed order, the parts disjoint. None: every seed is a task.
        """
        return None


def check_text_env(env: gymnasium.Env[Any, Any], task: Task | None = None) -> None:
    """Play one step of `task` (or of seed 0) with an ordinary text and look at everything that comes back.

    The environment is left in the middle of an episode: reset it before use.

    Raises:
        EnvError: what is wrong, in the environment's name.
    """
    name = type(env.unwrapped).__name__
    seed = task.seed if task is not None and task.seed is not None else 0
    options = dict(task.options) if task is not None else None
    advice = " An environment must take any text as an action and the options of its own tasks."
    with own_errors(f"{name}.reset(seed={seed}, options={options}) raised", advice):
        result: Any = env.reset(seed=seed, options=options)
    if not isinstance(result, tuple) or len(result) != 2:
        raise EnvError(f"{name}.reset must return (observation, info), found {_kind(result)}.")
    with own_errors(f"{name}.step({_PROBE!r}) raised", advice):
        outcome: Any = env.step(_PROBE)
    if not isinstance(outcome, tuple) or len(outcome) != 5:
        raise EnvError(
            f"{name}.step must return (observation, reward, terminated, truncated, info), found {_kind(outcome)}."
        )
    observation, reward, terminated, truncated, info = outcome
    try:
        finite = math.isfinite(reward)
    except TypeError:
        finite = False
    if not finite:
        raise EnvError(f"{name}.step must return a finite number as reward, found {reward!r}.")
    for label, flag in (("terminated", terminated), ("truncated", truncated)):
        if type(flag).__name__ not in {"bool", "bool_"}:
            raise EnvError(f"{name}.step must return a bool as {label}, found {_kind(flag)}.")
    for where, seen, about in ((f"{name}.reset", *result), (f"{name}.step", observation, info)):
        if not isinstance(seen, str):
            raise EnvError(f"{where} must return a str as observation, found {_kind(seen)}. This framework plays text.")
        if not isinstance(about, Mapping):
            raise EnvError(f"{where} must return a dict as info, found {_kind(about)}.")
        try:
            json.dumps(dict(about))
        except (TypeError, ValueError) as error:
            raise EnvError(f"{where} must return info that JSON can write: {error}.") from None
        state = about.get("state", "-")
        if not isinstance(state, str) or not state:
            raise EnvError(
                f'{where} must return a digest of its state as info["state"], a str, or none; found {state!r:.80}.'
            )


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
        name = type(env.unwrapped).__name__
        warnings.warn(f"{name} could not be closed: {type(error).__name__}: {error}.", stacklevel=2)


@contextmanager
def own_errors(what: str, advice: str = "") -> Iterator[None]:
    """Turn whatever an environment's own code raises into one error, which begins with `what`; ours pass."""
    try:
        yield
    except SkillTTRLError:
        raise
    except FAILURES as error:
        said = str(error).partition(_GYMNASIUM_ADDS)[0].rstrip(".")
        raise EnvError(f"{what} {type(error).__name__}: {said}.{advice}") from error


def _kind(value: Any) -> str:
    return f"{len(value)} values" if isinstance(value, tuple) else type(value).__name__


def foreign_text(text: str, most: int = 20_000) -> str:
    """A text of somebody else's server as it may be shown: at most so many characters, escaped (`sanitize.escape`)."""
    return escape(text if len(text) <= most else f"{text[:most]}… ({len(text):,} characters)")


def check_choice(what: str, value: object, known: Collection[str]) -> None:
    """Raise `EnvError` if the name of a thing (`what`, such as "engine") is not one of the known ones."""
    if value not in known:
        raise EnvError(f"There is no {what} {value!r:.60}.{did_you_mean(str(value)[:50], known)}")


def check_episode(max_steps: object = 1, reward: object = 1.0, **others: object) -> None:
    """Raise `EnvError` if the length of an episode or the reward of success is not usable; ignore `others`."""
    check_whole("max_steps", max_steps, 1)
    if isinstance(reward, bool) or not isinstance(reward, int | float) or not math.isfinite(reward):
        raise EnvError(f"reward must be a finite number, found {reward!r:.60}.")


def check_whole(name: str, number: Any, least: int = 0, most: int | None = None) -> int:
    """Return a whole number that a user gave; raise `EnvError` if it is none, or not from `least` to `most` (None: any above)."""
    whole = isinstance(number, int | np.integer) and not isinstance(number, bool)
    if not whole or number < least or (most is not None and number > most):
        bounds = f"of at least {least}" if most is None else f"from {least} to {most:,}"
        raise EnvError(f"{name} must be a whole number {bounds}, found {number!r:.60}.")
    return int(number)


def generated_count(data: object, what: str, most: int) -> int | None:
    """The number of things (`what`) that `generated:N` names; 0: `generated`, for the default; None: `data` is something else.

    Raises:
        EnvError: there is no number from 1 to `most`.
    """
    if not isinstance(data, str) or data.partition(":")[0] != "generated":
        return None
    number = data[len("generated:") :]
    count = int(number[:12]) if number.isascii() and number.isdigit() else 0
    if ":" in data and not 1 <= count <= most:
        wanted = f'{what} from 1 to {most:,} after the colon. Write "generated:10000"'
        raise EnvError(f"data={data[:60]!r} has no number of {wanted}.")
    return count


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
