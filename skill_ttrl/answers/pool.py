"""The worker process seen from outside: started once, asked in batches, restarted when it dies."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from skill_ttrl.answers.grammar import Tree
from skill_ttrl.errors import WorkerError

Judged = dict[str, Any]
"""`{"key": text}`, or `{"gave_up": "timeout" | "memory" | "crashed" | "undecided", "why": text}`."""

TIME_LIMIT = 0.8
"""Seconds of wall time for one answer."""
MEMORY_LIMIT = 512 * 2**20
"""Bytes that the process at work may take beyond what SymPy takes itself."""
START_LIMIT = 120.0
"""Seconds in which the worker must have imported SymPy, on a machine however loaded."""
_PATIENCE = 10.0  # beyond the time limit before the worker itself is held to be stuck
_lock = threading.Lock()


def _after_fork() -> None:
    """A forked process has no threads that could free a lock which was held at that moment."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


class Pool:
    """One worker process, started when it is first needed. Threads take turns; a forked process starts its own."""

    def __init__(self, time_limit: float = TIME_LIMIT, memory_limit: int = MEMORY_LIMIT) -> None:
        self.time_limit = time_limit
        self.memory_limit = memory_limit
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0
        self._left = b""
        self._broken: WorkerError | None = None
        atexit.register(self.close)

    def judge(self, trees: Sequence[Tree]) -> list[Judged]:
        """The verdict on each tree, in order.

        Raises:
            WorkerError: the worker process does not start.
        """
        with _lock:
            verdicts: list[Judged] = []
            died_at = -1
            while len(verdicts) < len(trees):
                verdicts += self._ask(trees[len(verdicts) :])
                if len(verdicts) < len(trees):
                    # The worker died. Perhaps somebody killed it: the answer is asked about once more.
                    if len(verdicts) == died_at:
                        verdicts.append({"gave_up": "crashed", "why": "the worker died"})
                        died_at = -1
                    else:
                        died_at = len(verdicts)
            return verdicts

    def close(self) -> None:
        """End the worker. The next comparison starts another."""
        with _lock:
            self._stop()

    def _ask(self, trees: Sequence[Tree]) -> list[Judged]:
        """The verdicts that come before the worker dies: all of them, as a rule."""
        verdicts: list[Judged] = []
        try:
            process = self._running()
            assert process.stdin is not None
            process.stdin.write(json.dumps(trees).encode() + b"\n")
            process.stdin.flush()
            while len(verdicts) < len(trees):
                line = self._line(self.time_limit + _PATIENCE)
                if line is None:
                    self._stop()
                    break
                verdicts.append(json.loads(line))
        except BrokenPipeError:
            self._stop()
        except BaseException:  # interrupted: a reply that nobody read would be taken for the next one's
            self._stop()
            raise
        return verdicts

    def _running(self) -> subprocess.Popen[bytes]:
        if self._broken is not None:
            raise self._broken
        if self._owner != os.getpid():  # after a fork the pipes are the parent's
            self._process, self._owner, self._left = None, os.getpid(), b""
        if self._process is not None and self._process.poll() is not None:
            self._stop()  # it died while nothing was asked of it
        if self._process is None:
            limits = str(self.time_limit), str(self.memory_limit)
            command = [sys.executable, "-P", "-m", "skill_ttrl.answers.worker", *limits]
            try:
                self._process = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=worker_environment(), process_group=0
                )
            except OSError as error:
                raise WorkerError(f"Cannot start the process that compares expressions: {error}.") from error
            if self._line(START_LIMIT) is None:
                self._stop()
                self._broken = WorkerError(
                    f"The process that compares expressions did not start within {START_LIMIT:g} s or ended at once; its own "
                    "message is above. `python -m skill_ttrl.answers.worker 1 1000000000` shows it alone."
                )
                raise self._broken
        return self._process

    def _line(self, patience: float) -> bytes | None:
        """The next line of the worker's, or None where it is stuck or dead."""
        assert self._process is not None and self._process.stdout is not None
        deadline = time.monotonic() + patience
        while b"\n" not in self._left:
            stdout = self._process.stdout.fileno()
            if not readable(stdout, deadline - time.monotonic()):
                return None
            chunk = os.read(stdout, 1 << 16)
            if not chunk:
                return None
            self._left += chunk
        line, _, self._left = self._left.partition(b"\n")
        return line

    def _stop(self) -> None:
        process, self._process, self._left = self._process, None, b""
        if process is None or self._owner != os.getpid():
            return
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):  # what was not yet sent goes nowhere
                    stream.close()


def readable(descriptor: int, seconds: float) -> bool:
    """Wait until there is something to read, or the end; False when the time is over. Any number of open files will do."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(max(0.0, seconds) * 1000))


def worker_environment() -> dict[str, str]:
    """The environment of a worker process, with this package on the import path where it is not installed.

    Nothing else of `sys.path` is passed on: a folder called `sympy` next to a user's script is not SymPy.
    """
    home = Path(__file__).parents[2]
    if home.name in ("site-packages", "dist-packages"):
        return dict(os.environ)
    paths = [str(home), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}
