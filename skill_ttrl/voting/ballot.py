"""The samples of one prompt, and votes on them by the name of a strategy.

A strategy is one function from a `Ballot`, with options as keyword arguments, to a `VoteResult`. To add one, write it in
`strategies.py` under `@strategy("name")`, naming what it needs of the ballot. One of your own is `module:function`; what it requires is
in its attribute `requires`. It is imported and called, so its name comes from the command line, a config or a program and never out of
data.
"""

from __future__ import annotations

import functools
import inspect
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from skill_ttrl.answers import canonicals
from skill_ttrl.errors import ConfigError, ExtensionError, did_you_mean
from skill_ttrl.registry import Registry, naming
from skill_ttrl.types import Group, Trajectory, VoteResult
from skill_ttrl.voting.tally import Tally, tally


@dataclass(frozen=True, slots=True)
class Ballot:
    """All samples of one prompt, and what a strategy may know about them. None: not known."""

    answers: tuple[str | None, ...]
    prompt: str = ""
    """Id of the prompt."""
    logprobs: tuple[float, ...] | None = None
    """Log-probability (nats) of each whole sample under the policy that drew it: the sum over its tokens."""
    lengths: tuple[int, ...] | None = None
    """Sampled tokens of each sample."""
    base_answers: tuple[str | None, ...] | None = None
    """What the policy before training answered to the same prompt, one entry for each of its samples."""
    keys: tuple[str | None, ...] | None = None
    """Class of each answer (`answers.canonicals`), where it was looked up with those of other ballots."""

    def tally(self) -> Tally:
        """The answers, counted."""
        return tally(self.answers, self.keys)


def ballot_of(group: Group, base_answers: Sequence[str | None] | None = None) -> Ballot:
    """Build the ballot of a group of rollouts. Log-probabilities are set where every rollout with text has them."""
    rollouts = group.trajectories
    written = [_written(trajectory) for trajectory in rollouts]
    scored = any(tokens for _, tokens in written)
    return Ballot(
        answers=tuple(group.answers),
        prompt=group.task.id,
        logprobs=tuple(logprob for logprob, _ in written) if scored else None,
        lengths=tuple(tokens for _, tokens in written) if scored else None,
        base_answers=None if base_answers is None else tuple(base_answers),
    )


def _written(trajectory: Trajectory) -> tuple[float, int]:
    """Log-probability and number of a rollout's own sampled tokens."""
    total, count = 0.0, 0
    for step in trajectory.steps:
        if step.completion is not None:
            mask = step.completion.completion_mask or (True,) * len(step.completion.logprobs)
            own = [value for value, sampled in zip(step.completion.logprobs, mask, strict=True) if sampled]
            total, count = total + sum(own), count + len(own)
    return total, count


Strategy = Callable[..., VoteResult]
"""(ballot, **options) → the vote."""
S = TypeVar("S", bound=Strategy)

STRATEGIES: Registry[Strategy] = Registry("voting strategy")
_REQUIRES: dict[str, dict[str, str]] = {}

INPUT_SOURCES: Mapping[str, str] = {
    "logprobs": "samples whose tokens have log-probabilities (of a text file: a list `logprobs`)",
    "lengths": "samples whose tokens are known (of a text file: a list `lengths`)",
    "base_answers": "answers of the policy before training; a run samples them at its start",
}
"""Fields that a ballot may lack, and where each comes from."""


def strategy(name: str, *requires: str, **unless: str) -> Callable[[S], S]:
    """Decorator: file a strategy under `name`.

    Args:
        name: What `vote.strategy` calls it.
        *requires: Fields of the ballot that it cannot do without.
        **unless: Fields that it needs unless the option of this name is false.
    """

    def add(function: S) -> S:
        STRATEGIES.register(name)(function)
        _REQUIRES[name] = {**dict.fromkeys(requires, ""), **unless}
        return function

    return add


def requires(name: str, options: Mapping[str, Any] | None = None) -> tuple[str, ...]:
    """Fields of the ballot that a strategy cannot do without under these options.

    Raises:
        ConfigError: no strategy has this name.
    """
    function = _function(name)
    wanted = _REQUIRES[name] if name in _REQUIRES else dict.fromkeys(getattr(function, "requires", ()), "")
    return tuple(field for field, switch in wanted.items() if not switch or (options or {}).get(switch, True))


def vote(name: str, ballot: Ballot, options: Mapping[str, Any] | None = None) -> VoteResult:
    """Hold the vote that `name` names.

    Raises:
        ConfigError: no strategy has this name, what has it is none, an option is not one of its own or out of its range, the
            ballot lacks what it requires, or a strategy of one's own gives no sound result.
        ValueError: the ballot has not one entry of a kind for each answer.
    """
    function = _function(name)
    parameters = inspect.signature(function).parameters
    known = list(parameters)[1:]
    open_ended = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    for option, value in (options or {}).items():
        if option not in known and not open_ended:
            raise ConfigError(f"The voting strategy {name!r} has no option {option!r}.{did_you_mean(option, known)}")
        # A text such as "no" would count as true.
        if option in known and isinstance(parameters[option].default, bool) and not isinstance(value, bool):
            raise ConfigError(f"The vote's option {option!r} must be true or false; found {value!r}.")
    missing = [field for field in requires(name, options) if getattr(ballot, field) is None]
    if missing:
        asked = "; ".join(f"{field}: {INPUT_SOURCES.get(field, field)}" for field in missing)
        raise ConfigError(f"The voting strategy {name!r} needs inputs that this ballot lacks. {asked}.")
    for field in ("logprobs", "lengths", "keys"):
        given = getattr(ballot, field)
        if given is not None and len(given) != len(ballot.answers):
            raise ValueError(
                f"The ballot of {ballot.prompt!r} has {len(given)} {field} for {len(ballot.answers)} answers. Give one each."
            )
    with nullcontext() if name in STRATEGIES else naming(f"The voting strategy {name!r}", f"on task {ballot.prompt!r}"):
        found = function(ballot, **(options or {}))
    if not isinstance(found, VoteResult) or not _sound(found, len(ballot.answers)):
        raise ConfigError(
            f"The voting strategy {name!r} must return a VoteResult with one finite entry for each of {len(ballot.answers)} "
            f"samples; it returned {found!r}."
        )
    return found


def _function(name: str) -> Strategy:
    """The strategy of this name. What is named as one of the user's own is looked at before anybody calls it.

    Raises:
        ConfigError: there is none, or it is no function of a ballot: a slip such as `os:system` runs nothing.
    """
    function = STRATEGIES.get(name)
    if name in STRATEGIES:
        return function
    inner: Any = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    home = str(getattr(inner, "__module__", None) or "").partition(".")[0]
    if not callable(inner) or inspect.isclass(inner) or inspect.isbuiltin(inner) or home in sys.stdlib_module_names:
        raise ConfigError(f"{name!r} is not a voting strategy: expected a function from a Ballot to a VoteResult.")
    try:
        first = next(iter(inspect.signature(function).parameters.values()), None)
    except (TypeError, ValueError):  # written in C, without a signature
        first = None
    if first is None or first.kind not in (first.POSITIONAL_ONLY, first.POSITIONAL_OR_KEYWORD):
        raise ConfigError(f"{name!r} is not a voting strategy: its first parameter must take the Ballot.")
    return function


def _sound(found: VoteResult, samples: int) -> bool:
    """True if training can use the result: a strategy may be the user's."""
    return len(found.matches) == samples and all(map(math.isfinite, (found.majority_ratio, *found.scores)))


def batch_vote(name: str, ballots: Sequence[Ballot], options: Mapping[str, Any] | None = None) -> list[VoteResult]:
    """Hold the votes of one step: all distinct answers are compared in one go.

    Raises:
        ConfigError: as `vote`.
    """
    keys = iter(canonicals([answer for ballot in ballots if ballot.keys is None for answer in ballot.answers]))
    return [
        vote(
            name,
            ballot if ballot.keys is not None else replace(ballot, keys=tuple(next(keys) for _ in ballot.answers)),
            options,
        )
        for ballot in ballots
    ]


def check_strategy(name: str, options: Mapping[str, Any] | None = None) -> None:
    """Hold a small made-up vote, so that a wrong name or option is found before anything is sampled.

    Raises:
        ConfigError: as `vote`, or an option has a value of the wrong kind.
    """
    ballot = Ballot(
        answers=("1", "2", "1", None),
        prompt="check",
        logprobs=(-1.0, -2.0, -3.0, -4.0),
        lengths=(1, 2, 3, 4),
        base_answers=("1", "2"),
    )
    try:
        vote(name, ballot, options)
    except (TypeError, ValueError) as error:
        reason = error.__cause__ if isinstance(error, ExtensionError) else error
        if isinstance(reason, ConfigError) or not isinstance(reason, TypeError | ValueError):
            raise
        raise ConfigError(
            f"The voting strategy {name!r} cannot work with its options {dict(options or {})}: {reason}."
        ) from reason


def check_range(
    value: float, option: str, low: float, high: float = float("inf"), *, above: bool = False, whole: bool = False
) -> float:
    """Check that an option's value lies in [low, high], is not `low` itself (`above`), is an integer (`whole`).

    Raises:
        ConfigError: it is no number in the range.
    """
    is_number = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
    if not is_number or not low <= value <= high or (above and value == low):
        bounds = f"{'above' if above else 'at least'} {low:g}" + (
            f" and at most {high:g}" if high != float("inf") else ""
        )
        kind = "whole number" if whole else "number"
        raise ConfigError(f"The vote's option {option!r} must be a {kind} {bounds}; found {value!r}.")
    return value
