"""Processes that end with the one that started them, also when that one is killed (Linux)."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def die_with_parent(signum: int, parent: int) -> None:
    """Have the kernel send this process the signal `signum` when its parent ends.

    `parent` is its process id as whoever started this one knows it: it may be gone already.
    """
    if not sys.platform.startswith("linux"):
        return  # there the process group alone, which the supervisor ends, holds them together
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signum, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
