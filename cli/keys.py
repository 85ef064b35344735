"""Single keys of the terminal while something is drawn on it; the terminal is given back as it was."""

from __future__ import annotations

import os
import select
import sys
import termios
import tty
from contextlib import suppress
from typing import Any

GONE = (OSError, ValueError, termios.error)
"""A terminal that is gone, a closed stdin, or one of another session."""


class Keys:
    """Reads keys without Enter and without echo, once opened, as long as this process is in front of the terminal on stdin.

    Ctrl-C and Ctrl-Z are signals as before.
    """

    def __init__(self) -> None:
        self._before: list[Any] | None = None  # of the terminal, once opened

    def open(self) -> None:
        """Begin; does nothing the second time."""
        with suppress(*GONE):
            if self._before is None and self._in_front():
                self._before = termios.tcgetattr(sys.stdin)
                tty.setcbreak(sys.stdin, termios.TCSANOW)

    def close(self) -> None:
        """Give the terminal back."""
        before, self._before = self._before, None
        with suppress(*GONE):
            if before is not None and self._in_front():
                termios.tcsetattr(sys.stdin, termios.TCSANOW, before)

    def read(self) -> str:
        """The keys that were pressed since the last call; waits for none."""
        with suppress(*GONE):
            if self._before is None or not self._in_front():
                return ""
            # A shell sets the terminal its own way between Ctrl-Z and fg.
            if termios.tcgetattr(sys.stdin)[3] & termios.ICANON:
                tty.setcbreak(sys.stdin, termios.TCSANOW)
            if select.select([sys.stdin], [], [], 0)[0]:
                return os.read(sys.stdin.fileno(), 64).decode(errors="replace")
        return ""

    @staticmethod
    def _in_front() -> bool:
        """A process in the background that touches the terminal would be stopped."""
        return sys.stdin.isatty() and os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
