"""What a voting strategy is given, and the registry of strategies.

A strategy is one function from a `Ballot`, with options as keyword arguments, to a `VoteResult`. One of your own is
`module:function`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from skill_ttrl.errors import ConfigError, did_you_mean
from skill_ttrl.registry import Registry
from skill_ttrl.types import VoteResult

Strategy = Callable[..., VoteResult]
"""(ballot, **options) → the vote."""

STRATEGIES: Registry[Strategy] = Registry("voting strategy")


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
    views: tuple[int, ...] | None = None
    """Which wording each sample answered: 0 the question as given, 1 its paraphrase."""


def vote(name: str, ballot: Ballot, options: Mapping[str, Any] | None = None) -> VoteResult:
    """Hold the vote that `name` names.

    Raises:
        ConfigError: no strategy has this name, an option is not one of its own, or the ballot lacks what it needs.
    """
    strategy = STRATEGIES.get(name)
    known = list(inspect.signature(strategy).parameters)[1:]
    for option in options or {}:
        if option not in known:
            raise ConfigError(f"The voting strategy {name!r} has no option {option!r}.{did_you_mean(option, known)}")
    return strategy(ballot, **(options or {}))
