"""One host: holds environments, which are called at the same time, each in a thread. Runs in a process of Ray; imports no ray."""

from __future__ import annotations

import os
import pickle
import platform
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from skill_ttrl.envs.contract import close_env
from skill_ttrl.scale.worker import Answer, portable

MakeEnv = Callable[[], Any]
"""Makes an environment; a module's own function, or a `partial` of one."""


class Host:
    """Holds environments in a process of its own. What they print is in Ray's logs.

    Args:
        folder: working directory of the caller; taken where this machine has it, so that relative paths mean the same.
    """

    def __init__(self, folder: str) -> None:
        self._envs: dict[str, Any] = {}
        self._make: MakeEnv | None = None
        with suppress(OSError):
            os.chdir(folder)

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
