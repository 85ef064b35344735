"""One run of a program: input, bounded output, a time limit, and nothing left running.

The program leads a session and a process group of its own. When it ends or is stopped, its group is killed, and so is every process
with its mark in the environment: a child that started a session of its own still has the mark (Linux).
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

MARK = "SKILLTTRL_COMMAND_ID"
"""Environment variable that tells the processes of one run from all others."""
LOOK_S = 0.05
"""Longest pause between two looks at the clock and the program, in seconds."""
DRAIN_S = 0.5
"""Longest wait for output that processes of an ended program hold back."""
QUIET_S = 0.01
"""Pause between two looks for processes that are left, in seconds."""
MOST_LOOKS = 100
CHUNK = 1 << 16
KEPT_ERROR_BYTES = 4096
"""Of stderr the end is kept."""


@dataclass(frozen=True, slots=True)
class Finished:
    """The outcome of one run."""

    outcome: str
    """`ok`, `failed` (exit code, or no such program), `timeout`, `too_long` (output) or `cancelled`."""
    output: bytes = b""
    error_output: bytes = b""
    """End of stderr."""
    exit_code: int | None = None
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits of one run."""

    seconds: float
    output_bytes: int


def run_program(
    argv: Sequence[str],
    text: str,
    env: Mapping[str, str],
    cwd: str | Path,
    bounds: Bounds,
    stop: threading.Event,
) -> Finished:
    """Run a program to its end, its limits, or until `stop` is set. It blocks; call it in a thread.

    Raises:
        OSError: it cannot be started.
    """
    mark = uuid.uuid4().hex
    began = time.monotonic()
    process = subprocess.Popen(
        list(argv),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**env, MARK: mark},
        cwd=cwd,
        start_new_session=True,
    )
    try:
        pipes = _Pipes(process, text.encode("utf-8", "replace"), bounds.output_bytes)
        outcome = _attend(process, pipes, began + bounds.seconds, stop)
    finally:
        code = _end(process, mark)
    if outcome == "ok" and code != 0:
        outcome = "failed"
    return Finished(outcome, bytes(pipes.output), bytes(pipes.error_output), code, time.monotonic() - began)


class _Pipes:
    """The three pipes of a program, served as they are ready."""

    def __init__(self, process: subprocess.Popen[bytes], text: bytes, most: int) -> None:
        self.output, self.error_output = bytearray(), bytearray()
        self._left, self._most = memoryview(text), most
        self._selector = selectors.DefaultSelector()
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        for pipe, event, serve in (
            (process.stdin, selectors.EVENT_WRITE, self._write),
            (process.stdout, selectors.EVENT_READ, self._read),
            (process.stderr, selectors.EVENT_READ, self._read_error),
        ):
            os.set_blocking(pipe.fileno(), False)
            self._selector.register(pipe, event, serve)

    @property
    def open(self) -> bool:
        """False once the program, and all that it has started, have closed their output."""
        return any(key.events == selectors.EVENT_READ for key in self._selector.get_map().values())

    @property
    def too_long(self) -> bool:
        return len(self.output) > self._most

    def serve(self, seconds: float) -> None:
        """Read and write what can be, waiting at most so long."""
        for key, _ in self._selector.select(max(0.0, seconds)):
            key.data(key.fileobj)

    def close(self) -> None:
        self._selector.close()

    def _write(self, pipe: IO[bytes]) -> None:
        try:
            written = os.write(pipe.fileno(), self._left[:CHUNK]) if self._left else 0
        except BlockingIOError:
            return
        except OSError:  # the program does not read all of it, which is its own business
            written = len(self._left)
        self._left = self._left[written:]
        if not self._left:
            self._done(pipe)

    def _read(self, pipe: IO[bytes]) -> None:
        self._take(pipe, self.output)

    def _read_error(self, pipe: IO[bytes]) -> None:
        self._take(pipe, self.error_output)
        del self.error_output[:-KEPT_ERROR_BYTES]

    def _take(self, pipe: IO[bytes], into: bytearray) -> None:
        with suppress(BlockingIOError):
            found = os.read(pipe.fileno(), CHUNK)
            into += found
            if not found:
                self._done(pipe)

    def _done(self, pipe: Any) -> None:
        self._selector.unregister(pipe)
        with suppress(OSError):
            pipe.close()


def _attend(process: subprocess.Popen[bytes], pipes: _Pipes, deadline: float, stop: threading.Event) -> str:
    """Serve the pipes until the program has ended, or must be: the outcome, as far as it is known."""
    ended: float | None = None
    while True:
        now = time.monotonic()
        if stop.is_set():
            return "cancelled"
        if pipes.too_long:
            return "too_long"
        if ended is None and _has_ended(process):
            ended = now
        if ended is not None and (not pipes.open or now > ended + DRAIN_S):
            return "ok"
        if ended is None and now >= deadline:
            return "timeout"
        if pipes.open:
            pipes.serve(min(LOOK_S, deadline - now) if ended is None else LOOK_S)
        else:
            time.sleep(min(LOOK_S, max(0.0, deadline - now)))


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """True for a program that has ended. It is not reaped yet: until then nobody else gets the number of its group.

    macOS cannot look without reaping.
    """
    if not hasattr(os, "waitid"):
        return process.poll() is not None
    try:
        return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


def _end(process: subprocess.Popen[bytes], mark: str) -> int:
    """Kill all that is left of the program and what it has started; returns its exit code."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    _kill_marked(mark)
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            with suppress(OSError):
                pipe.close()
    return process.wait()


def _kill_marked(mark: str) -> None:
    """Kill the processes whose environment has the mark, where the system shows environments (Linux).

    One that is just starting another program shows none for a moment, so it is looked again until none is found twice.
    """
    wanted, quiet = f"{MARK}={mark}".encode(), 0
    for _ in range(MOST_LOOKS):
        quiet += 1
        for entry in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):
                if wanted in entry.read_bytes().split(b"\0"):
                    os.kill(int(entry.parent.name), signal.SIGKILL)
                    quiet = 0
        if quiet == 2:
            return
        time.sleep(QUIET_S)
