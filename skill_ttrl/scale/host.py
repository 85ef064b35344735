"""One host: holds environments, each called one call at a time. Runs in a process of Ray; imports no ray."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from skill_ttrl.envs.contract import close_env
from skill_ttrl.scale.worker import Answer, answer

MakeEnv = Callable[[], Any]
"""Makes an environment; a module's own function, or a `partial` of one."""


class Host:
    """Holds environments in a process of its own.

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

        return platform.node(), answer(try_it)

    def call(self, name: str, method: str, *args: Any, **kwargs: Any) -> Answer:
        """Call a method of an environment, which is made first where it is not there yet."""

        def do() -> Any:
            if name not in self._envs:
                assert self._make is not None  # nothing is called before it has started
                self._envs[name] = self._make()
            return getattr(self._envs[name], method)(*args, **kwargs)

        return answer(do)

    def close(self, name: str) -> None:
        """Close an environment, where there is one of this name."""
        env = self._envs.pop(name, None)
        if env is not None:
            close_env(env)
