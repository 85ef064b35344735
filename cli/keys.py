"""Single keys of the terminal while something is drawn on it; the terminal is given back as it was."""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import threading
import tty
from contextlib import suppress
from types import FrameType
from typing import Any

from rich.console import Console


class Keys:
    """Reads keys without Enter and without echo, once opened, as long as this process is in front of the terminal on stdin.

    Ctrl-C is a signal as before. Ctrl-Z gives the terminal back before the process stops; `fg` takes it again.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._wanted = False
        self._before: list[Any] | None = None  # of the terminal, while single keys are read

    def open(self) -> None:
        """Begin, in the main thread; does nothing elsewhere, or the second time."""
        if not self._wanted and threading.current_thread() is threading.main_thread():
            self._wanted = True
            if signal.getsignal(signal.SIGTSTP) is signal.SIG_DFL:
                signal.signal(signal.SIGTSTP, self._stop)

    def close(self) -> None:
        """Give the terminal back."""
        self._wanted, before, self._before = False, self._before, None
        with suppress(OSError, termios.error):
            if before is not None and self._in_front():
                termios.tcsetattr(sys.stdin.fileno(), termios.TCSANOW, before)
        if signal.getsignal(signal.SIGTSTP) == self._stop:
            signal.signal(signal.SIGTSTP, signal.SIG_DFL)

    def read(self) -> str:
        """The keys that were pressed since the last call; waits for none."""
        with suppress(OSError, termios.error):  # a terminal that is gone
            if self._wanted and self._in_front():
                stdin = sys.stdin.fileno()
                if self._before is None:
                    self._before = termios.tcgetattr(stdin)
                    tty.setcbreak(stdin, termios.TCSANOW)
                if select.select([stdin], [], [], 0)[0]:
                    return os.read(stdin, 64).decode(errors="replace")
        return ""

    def _in_front(self) -> bool:
        """A process in the background that touches the terminal would be stopped."""
        try:
            return sys.stdin.isatty() and os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
        except (OSError, ValueError, AttributeError):  # stdin is closed or none, or of another session
            return False

    def _stop(self, signum: int, frame: FrameType | None) -> None:
        self.close()
        self._console.show_cursor(True)
        signal.pthread_kill(threading.get_ident(), signal.SIGTSTP)  # stops the process here, until `fg` or `bg`
        self._console.show_cursor(False)
        self.open()
