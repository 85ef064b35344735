"""The `command` backend: a program of the user's, such as a command-line coding agent, in the place of a model.

The prompt goes in on stdin, the answer is stdout. It knows texts alone, and its weights, if it has any, stay as they are. A program that fails,
hangs or writes without end is a completion with the reason in `error`. Each run is a request in the ledger; what it spends elsewhere nobody
here knows.
"""

from __future__ import annotations

import asyncio
import os
import selectors
import shlex
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from skill_ttrl.config import CommandConfig
from skill_ttrl.errors import BudgetError, ConfigError, EndpointError
from skill_ttrl.llm.backend import Generation, Request, Sampling
from skill_ttrl.llm.command.files import names_file
from skill_ttrl.llm.openai.backend import GO_ON, TextBackend
from skill_ttrl.llm.openai.ledger import PROGRAM, Spend, counted_request
from skill_ttrl.llm.openai.replies import printable
from skill_ttrl.types import Completion, Message, derive_seed

if TYPE_CHECKING:
    from skill_ttrl.llm.context import BackendContext

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


PASSED = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "SYSTEMROOT")
"""Environment variables that every program gets."""
SHOWN = 400
"""Characters of stderr in a message."""
SHORTEST_SECRET = 6
"""Shorter values of variables are not looked for in what a program says."""


class CommandBackend(TextBackend):
    """Samples by running `command.argv` once for each completion.

    Raises:
        ConfigError: no command is set, its program or a variable that it is to get is not there, or it is to be trained.
    """

    def __init__(self, context: BackendContext) -> None:
        super().__init__()
        if context.settings.command is None:
            raise ConfigError("rollout.backend=command needs a program: set command.argv, e.g. [my-agent, --print].")
        self.config = context.settings.command
        self.argv = found_program(self.config)
        self.name = shlex.join(self.config.argv)
        self._env = passed_environment(self.config, os.environ)
        self._pool = ThreadPoolExecutor(self.config.max_concurrency, "command")
        self._stop = threading.Event()

    def close(self) -> None:
        """End the programs that are running."""
        self._stop.set()
        self._pool.shutdown(wait=True, cancel_futures=True)

    async def generate(self, requests: Sequence[Request], sampling: Sampling, *, seed: int) -> list[Generation]:
        """Run the program for every completion; see `Backend.generate`.

        A program finds the seed, the temperature and the longest answer in `SKILLTTRL_SEED`, `SKILLTTRL_TEMPERATURE` and
        `SKILLTTRL_MAX_NEW_TOKENS`, and may do as it likes.

        Raises:
            BudgetError: `endpoints.max_requests` is reached. Programs that were running have been waited for.
            EndpointError: the program can no longer be started.
        """
        places = [(place, number) for place, request in enumerate(requests) for number in range(request.n)]
        tasks = [
            asyncio.create_task(self._answer(requests[place], sampling, derive_seed(seed, "command", place, number)))
            for place, number in places
        ]
        try:
            found = await asyncio.gather(*tasks)
        except BaseException:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise
        for each in found:
            if isinstance(each, BudgetError):
                raise each
        answers = iter([each for each in found if isinstance(each, Completion)])
        return [Generation((), tuple(next(answers) for _ in range(request.n))) for request in requests]

    async def _answer(self, request: Request, sampling: Sampling, seed: int) -> Completion | BudgetError:
        stop = _Stop(self._stop)
        try:
            async with counted_request(PROGRAM, self.config.argv[0], Spend(requests=1)) as counted:
                try:
                    finished = await self._run(request, sampling, seed, stop)
                    counted.outcome = finished.outcome
                except OSError as error:
                    raise EndpointError(
                        f"Cannot start {self.name}: {error.strerror or error}.", "unreachable"
                    ) from None
                finally:
                    counted.attempts = int(
                        stop.begun
                    )  # 0 where it was still in the queue when nobody waited for it any more
        except BudgetError as error:
            return error
        return self._completion(finished, sampling)

    async def _run(self, request: Request, sampling: Sampling, seed: int, stop: _Stop) -> Finished:
        env = {
            **self._env,
            "SKILLTTRL_SEED": str(seed % (1 << 31)),
            "SKILLTTRL_TEMPERATURE": f"{sampling.temperature:g}",
            "SKILLTTRL_MAX_NEW_TOKENS": str(request.limit(sampling)),
        }
        try:
            return await asyncio.get_running_loop().run_in_executor(
                self._pool, self._run_here, written_prompt(request), env, stop
            )
        finally:  # the one who asks may be gone: a program is not to go on without
            stop.set()

    def _run_here(self, text: str, env: Mapping[str, str], stop: _Stop) -> Finished:
        if stop.is_set():
            return Finished("cancelled")
        stop.begun = True
        bounds = Bounds(self.config.timeout, self.config.max_output_bytes)
        if self.config.cwd is not None:
            return run_program(self.argv, text, env, self.config.cwd, bounds, stop)
        with tempfile.TemporaryDirectory(prefix="skillttrl-command-", ignore_cleanup_errors=True) as folder:
            return run_program(self.argv, text, env, folder, bounds, stop)

    def _completion(self, finished: Finished, sampling: Sampling) -> Completion:
        if finished.outcome != "ok":
            return Completion("", (), (), "error", self.policy_version, error=self._problem(finished))
        text = finished.output.decode("utf-8", "replace").rstrip("\n")
        ends = [text.find(stop) + len(stop) for stop in sampling.stop if stop in text]
        return Completion(text[: min(ends, default=len(text))], (), (), "stop", self.policy_version)

    def _problem(self, finished: Finished) -> str:
        """Say in a sentence why it failed, with the end of stderr. No variable's value is in it."""
        why = {
            "timeout": f"had not ended after {self.config.timeout:g} s (command.timeout) and was stopped",
            "too_long": f"wrote more than {self.config.max_output_bytes:,} bytes (command.max_output_bytes) and was stopped",
            "cancelled": "was stopped before it had answered",
            "failed": f"ended with exit code {finished.exit_code}",
        }[finished.outcome]
        said = finished.error_output.decode("utf-8", "replace").strip()
        for name in self.config.env:
            if len(self._env[name]) >= SHORTEST_SECRET:
                said = said.replace(self._env[name], f"[{name}]")
        return f"{self.name} {why}." + (f" Its stderr ends: {printable(said[-SHOWN:])}" if said else "")


class _Stop(threading.Event):
    """Set by itself, or with another one."""

    def __init__(self, other: threading.Event) -> None:
        super().__init__()
        self._other = other
        self.begun = False
        """True once the program was about to be started."""

    def is_set(self) -> bool:
        return super().is_set() or self._other.is_set()


def written_prompt(request: Request) -> str:
    """A conversation as one text: its messages with empty lines between them, named by role where there are several turns."""
    messages = request.messages
    if request.assistant_prefix:
        messages = (*messages, Message("assistant", request.assistant_prefix), Message("user", GO_ON))
    if any(message.role == "assistant" for message in messages):
        return "\n\n".join(f"[{message.role}]\n{message.content}" for message in messages) + "\n"
    return "\n\n".join(message.content for message in messages) + "\n"


def found_program(config: CommandConfig) -> list[str]:
    """The command as it is run: its program, and arguments that name a file by a path (`agent.py`, `bin/agent`), with their whole paths.

    Both are looked up from here, whatever folder it runs in.

    Raises:
        ConfigError: there is no such program, or no such folder to run in.
    """
    path = shutil.which(config.argv[0])
    if path is None:
        raise ConfigError(
            f"command.argv: there is no program {config.argv[0]!r} on the PATH, nor at that place. Name one that can be run."
        )
    if config.cwd is not None and not os.path.isdir(config.cwd):
        raise ConfigError(f"command.cwd: there is no folder {config.cwd}.")
    files = (os.path.abspath(each) if names_file(each) else each for each in config.argv[1:])
    return [os.path.abspath(path), *files]


def passed_environment(config: CommandConfig, environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of a program: `PASSED`, and the variables that the config names.

    Raises:
        ConfigError: one of those is not set.
    """
    missing = [name for name in config.env if name not in environment]
    if missing:
        raise ConfigError(
            f"command.env names variables that are not set here: {', '.join(missing)}. Set them, or leave them out."
        )
    return {name: environment[name] for name in (*PASSED, *config.env) if name in environment}
