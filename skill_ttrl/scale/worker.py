"""One worker: makes what it works with, once, then works on one item after another. Runs in a process of Ray; imports no ray."""

from __future__ import annotations

import io
import os
import pickle
import platform
import traceback
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from typing import Any

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


class Worker:
    """Works in a process of its own.

    Args:
        folder: working directory of the caller; taken where this machine has it, so that relative paths mean the same.
    """

    def __init__(self, folder: str) -> None:
        self._work: Work | None = None
        with suppress(OSError):
            os.chdir(folder)

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
