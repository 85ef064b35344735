"""The entry point of `skillttrl`: Ctrl-C leaves quietly from the first moment, while the command line is still being loaded."""

from __future__ import annotations

import os
import signal
from types import FrameType

STOPPED = 128 + signal.SIGINT


def main() -> None:
    """Load the command line and run it."""
    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN  # a shell's background job
    if not ignored:
        signal.signal(signal.SIGINT, _leave)
    from skill_ttrl.cli.main import main as run

    if not ignored:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


def _leave(signum: int, frame: FrameType | None) -> None:
    os._exit(STOPPED)  # nothing is open yet; an exception could be swallowed or shown by whatever is being imported


if __name__ == "__main__":
    main()
