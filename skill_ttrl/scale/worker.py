"""One worker: makes what it works with, once, then works on one item after another. Runs in a process of Ray; imports no ray."""

from __future__ import annotations

import io
import os
import pickle
import platform
import traceback
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from skill_ttrl.envs.contract import close_env
from skill_ttrl.errors import ScaleError, SkillTTRLError

Work = Callable[[Any], Any]
Setup = Callable[[], tuple[Work, Any]]
"""Makes the function that works on an item, and what the caller should know of it."""
MOST_LINES = 20
"""Printed lines of one item that are handed on."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Result or exception of a call, and the lines that were printed meanwhile."""

    result: Any = None
    error: Exception | None = None
    printed: tuple[str, ...] = ()


def _enter(folder: str) -> None:
    """Go to the working directory of the caller where this machine has it, so that relative paths mean the same."""
    with suppress(OSError):
        os.chdir(folder)


class Worker:
    """Works in a process of its own; `folder` is the caller's (`_enter`)."""

    def __init__(self, folder: str) -> None:
        self._work: Work | None = None
        _enter(folder)

    def start(self, setup: Setup) -> tuple[str, Answer]:
        """Make what this worker works with; the name of its machine, and what the setup says."""

        def make() -> Any:
            self._work, facts = setup()
            return facts

        return platform.node(), answer(make)

    def close(self) -> None:
        """Close what this worker works with, where that can be closed."""
        close = getattr(self._work, "close", None)
        self._work = None
        if close is not None:
            close()

    def work(self, item: Any) -> Answer:
        """Work on one item."""
        assert self._work is not None  # a worker is given nothing before it is ready
        return answer(lambda: self._work(item))  # type: ignore[misc]


def answer(call: Callable[[], Any]) -> Answer:
    """Call it; what it prints is caught, and an exception is an answer that can travel."""
    text = io.StringIO()
    with redirect_stdout(text), redirect_stderr(text):
        try:
            result, error = call(), None
        except Exception as raised:
            result, error = None, portable(raised)
    lines = [line for line in text.getvalue().splitlines() if line.strip()]
    if len(lines) > MOST_LINES:
        lines = [*lines[:MOST_LINES], f"… and {len(lines) - MOST_LINES} more lines"]
    return Answer(result, error, tuple(lines))


def portable(error: Exception) -> Exception:
    """Return the exception, or, where it cannot be pickled, a `ScaleError` with its type and message; a bug keeps its traceback as a note."""
    if not isinstance(error, SkillTTRLError):
        error.add_note(f"In a worker:\n{''.join(traceback.format_exception(error))}")
    try:
        copy = pickle.loads(pickle.dumps(error))
        fits = type(copy) is type(error) and str(copy) == str(error)
    except Exception:  # whatever its own code does when it is pickled
        fits = False
    return error if fits else ScaleError(f"{type(error).__name__}: {error}")


# One host: holds environments, which are called at the same time, each in a thread. Runs in a process of Ray; imports no ray.


MakeEnv = Callable[[], Any]
"""Makes an environment; a module's own function, or a `partial` of one."""


class Host:
    """Holds environments in a process of its own; `folder` is the caller's (`_enter`). What they print is in Ray's logs."""

    def __init__(self, folder: str) -> None:
        self._envs: dict[str, Any] = {}
        self._make: MakeEnv | None = None
        _enter(folder)

    def start(self, make: MakeEnv) -> tuple[str, Answer]:
        """Make one environment, to see that it can be; the name of this machine."""

        def try_it() -> None:
            self._make = make
            close_env(make())

        return platform.node(), _answer(try_it)

    def call(self, name: str, method: str, *args: Any, **kwargs: Any) -> Answer:
        """Call a method of an environment, which is made first where it is not there yet; with an empty `method` it is made alone."""

        def do() -> Any:
            if name not in self._envs:
                assert self._make is not None  # nothing is called before it has started
                self._envs[name] = self._make()
            return _as_it_travels(getattr(self._envs[name], method)(*args, **kwargs)) if method else None

        return _answer(do)

    def close(self, name: str) -> None:
        """Close an environment, where there is one of this name."""
        env = self._envs.pop(name, None)
        if env is not None:
            close_env(env)


def _answer(call: Callable[[], Any]) -> Answer:
    try:
        return Answer(call())
    except Exception as raised:
        return Answer(error=portable(raised))


def _as_it_travels(found: Any) -> Any:
    """An answer of an environment, without those entries of its `info` that cannot be pickled, as nothing that is stored has them."""
    if _travels(found) or not (isinstance(found, tuple) and found and isinstance(found[-1], Mapping)):
        return found
    return (*found[:-1], {name: value for name, value in found[-1].items() if _travels(value)})


def _travels(value: Any) -> bool:
    try:
        pickle.dumps(value)
    except Exception:  # whatever its own code does when it is pickled
        return False
    return True


# A value that many items name: stored once in the cluster, and taken from there once by each worker.


T = TypeVar("T")
MOST_HELD = 8
"""Values that a worker holds; those go that were asked for longest ago."""
_held: OrderedDict[str, Any] = OrderedDict()


class Shared(Generic[T]):
    """A handle that can be sent to workers, in the place of its value.

    Args:
        value: stored in the cluster that this process is connected to, for as long as anybody has the handle.
    """

    def __init__(self, value: T) -> None:
        import ray

        self._reference = ray.put(value)
        self.key: str = self._reference.hex()
        """Tells values apart."""

    def fetch(self) -> T:
        """Return the value, and hold no copy of it."""
        import ray

        found: T = ray.get(self._reference)
        return found

    def get(self) -> T:
        """Return the value; in a worker, the same object each time, as long as it is held."""
        if self.key not in _held:
            _held[self.key] = self.fetch()
        _held.move_to_end(self.key)
        if len(_held) > MOST_HELD:
            _held.popitem(last=False)
        value: T = _held[self.key]
        return value
