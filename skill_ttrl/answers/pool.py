"""The process that compares expressions, seen from outside: started once, killed where it takes too long, restarted when it dies."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import signal
import subprocess
import sys
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
MOST_TIMEOUTS = 10
"""So many answers of one batch may take the whole time limit; those after them have a quarter of it."""
MEMORY_LIMIT = 512 * 2**20
"""Bytes that the process at work may take beyond what SymPy takes itself."""
MOST_TREES = 2000
"""A process works on so many answers, then another takes over: what SymPy remembers does not pile up."""
START_LIMIT = 120.0
"""Seconds in which the worker must have imported SymPy, on a machine however loaded."""


class Pool:
    """One worker (`answers.worker`), started when it is first needed, for one thread at a time (`equivalence`). A forked process starts its own."""

    def __init__(self, time_limit: float = TIME_LIMIT, memory_limit: int = MEMORY_LIMIT) -> None:
        self.time_limit, self.memory_limit = time_limit, memory_limit
        self._worker: subprocess.Popen[bytes] | None = None
        self._child = self._judged = 0
        """Id of the worker's child that does the work, and how many answers it has judged."""
        self._owner = 0
        self._left = b""
        self._broken: WorkerError | None = None
        atexit.register(self.close)

    def judge(self, trees: Sequence[Tree]) -> list[Judged]:
        """The verdict on each tree, in order.

        Raises:
            WorkerError: the worker does not start.
        """
        verdicts: list[Judged] = []
        timeouts = 0
        for tree in trees:
            limit = self.time_limit if timeouts < MOST_TIMEOUTS else self.time_limit / 4
            # Perhaps somebody killed the worker: the answer is asked about once more.
            found = self._ask(tree, limit) or self._ask(tree, limit)
            verdicts.append(found or {"gave_up": "crashed", "why": "the worker died"})
            timeouts += verdicts[-1].get("gave_up") == "timeout"
        return verdicts

    def close(self) -> None:
        """End the worker. The next comparison starts another."""
        self._stop()

    def _ask(self, tree: Tree, limit: float) -> Judged | None:
        """The verdict on a tree; None: the worker died."""
        try:
            self._start()
            assert self._worker is not None and self._worker.stdin is not None
            self._worker.stdin.write(json.dumps([limit, tree]).encode() + b"\n")
            self._worker.stdin.flush()
            found = self._next(limit)
            if "ready" in found:
                return {"gave_up": "crashed", "why": "the process ended"}
            self._judged += 1
            if self._judged >= MOST_TREES or found.get("gave_up") == "memory":
                self._renew()
            return found
        except TimeoutError:
            self._renew()
            return {"gave_up": "timeout", "why": f"longer than {limit:g} s"}
        except EOFError:
            self._stop()
            return None
        except BaseException:  # interrupted: a reply that nobody read would be taken for the next one's
            self._stop()
            raise

    def _start(self) -> None:
        """Have a worker with a child that waits for work."""
        if self._broken is not None:
            raise self._broken
        if self._owner != os.getpid():  # after a fork the pipes are the parent's
            self._worker, self._owner, self._left = None, os.getpid(), b""
        if self._worker is not None and self._worker.poll() is None:
            return
        self._stop()  # it died while nothing was asked of it
        command = [sys.executable, "-P", "-m", "skill_ttrl.answers.worker", str(self.memory_limit)]
        try:
            self._worker = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=worker_environment(), process_group=0
            )
        except OSError as error:
            raise WorkerError(f"Cannot start the process that compares expressions: {error}.") from error
        try:
            self._next(START_LIMIT)
        except (TimeoutError, EOFError):
            self._broken = WorkerError(
                f"The process that compares expressions did not start within {START_LIMIT:g} s or ended at once; its own "
                "message is above. `python -m skill_ttrl.answers.worker 1000000000` shows it alone."
            )
            raise self._broken from None

    def _renew(self) -> None:
        """Kill the child, whatever it is doing; the worker forks another."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._child, signal.SIGKILL)
        try:
            while "ready" not in self._next(START_LIMIT):  # it may have answered at the last moment
                pass
        except (TimeoutError, EOFError):
            self._stop()

    def _next(self, seconds: float) -> Judged:
        """Return the next message of the worker: a verdict, or that a new child is ready.

        Raises:
            TimeoutError: nothing in so many seconds.
            EOFError: it has died.
        """
        assert self._worker is not None and self._worker.stdout is not None
        stdout, deadline = self._worker.stdout.fileno(), time.monotonic() + seconds
        while b"\n" not in self._left:
            if not readable(stdout, deadline - time.monotonic()):
                raise TimeoutError
            chunk = os.read(stdout, 1 << 16)
            if not chunk:
                raise EOFError
            self._left += chunk
        line, _, self._left = self._left.partition(b"\n")
        found: Judged = json.loads(line)
        if "ready" in found:
            self._child, self._judged = found["ready"], 0
        return found

    def _stop(self) -> None:
        """Kill the worker and its child."""
        worker, self._worker, self._left = self._worker, None, b""
        if worker is None or self._owner != os.getpid():
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()
        for stream in (worker.stdin, worker.stdout):
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
