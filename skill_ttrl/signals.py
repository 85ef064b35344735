"""Signals that ask a run to stop: it finishes its step, saves a checkpoint and leaves."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType, TracebackType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
FAILURES = (Exception, SystemExit)
"""Exceptions that foreign code, such as an environment or a scripted agent, may raise of its own."""


RESUME = "Resume: the same command with --resume auto."
"""Ends the message of an interrupted run; the command line puts the user's own command in its place."""


class Interrupted(BaseException):
    """The run was asked to stop and has saved its state. The exit code is 128 plus the signal's number.

    Like KeyboardInterrupt it is no `Exception`: it may be raised anywhere in an evaluation, and code that takes a failure
    for an outcome (a try in an environment) must not take this for one.
    """

    def __init__(self, message: str, signum: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + signum


class StopSignal:
    """While entered, SIGINT, SIGTERM and SIGUSR1 are remembered instead of ending the process.

    A second SIGINT ends it at once. Outside the main thread signals cannot be caught, and nothing changes.
    """

    def __init__(self) -> None:
        self.signum: int | None = None
        self._leave_at_once: str | None = None
        self._before: dict[int, Any] = {}

    @contextmanager
    def interruptible(self, message: str) -> Iterator[None]:
        """For a part that has nothing to save, such as an evaluation: a signal ends it where it stands.

        Raises:
            Interrupted: with `message`, when a signal comes, or came just before.
        """
        self._leave_at_once = message
        try:
            if self.signum is not None:
                raise Interrupted(message, self.signum)
            yield
        finally:
            self._leave_at_once = None

    def __enter__(self) -> StopSignal:
        self._before = handle(self._remember)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        restore(self._before)
        outer = self._before.get(self.signum or 0)
        if error is None and self.signum is not None and isinstance(getattr(outer, "__self__", None), StopSignal):
            signal.raise_signal(self.signum)  # it came when all of this part was done: what it is a part of shall know

    def _remember(self, signum: int, frame: FrameType | None) -> None:
        if self.signum is not None and signum == signal.SIGINT:
            raise KeyboardInterrupt
        self.signum = signum
        if self._leave_at_once is not None:
            raise Interrupted(self._leave_at_once, signum)
        with suppress(OSError, RuntimeError):  # a signal may come in the middle of another write
            print("Interrupted: stopping after this step. Press Ctrl-C again to stop at once.", file=sys.stderr)


def handle(handler: Callable[[int, FrameType | None], None]) -> dict[int, Any]:
    """Handle `SIGNALS` with this function; gives the handlers before it, none outside the main thread, where nothing changes."""
    try:
        return {signum: signal.signal(signum, handler) for signum in SIGNALS}
    except ValueError:
        return {}


def restore(handlers: dict[int, Any]) -> None:
    """Put back what `handle` gave; a handler that is not Python's gives way to the default."""
    for signum, handler in handlers.items():
        signal.signal(signum, signal.SIG_DFL if handler is None else handler)


@contextmanager
def signals_held() -> Iterator[None]:
    """For a moment that must not end half way: signals that come while it lasts are handled right after it.

    Outside the main thread no handler runs, and nothing changes.
    """
    came: list[int] = []
    before = handle(lambda number, frame: came.append(number))
    try:
        yield
    finally:
        restore(before)
        for number in came:
            signal.raise_signal(number)
