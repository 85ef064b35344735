"""The `command` backend: a program of the user's, such as a command-line coding agent, in the place of a model.

The prompt goes in on stdin, the answer is stdout. It knows texts alone, and its weights, if it has any, stay as they are. A program that fails,
hangs or writes without end is a completion with the reason in `error`. Each run is a request in the ledger; what it spends elsewhere nobody
here knows.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import shlex
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import IO, TYPE_CHECKING

from skill_ttrl.config import CommandConfig
from skill_ttrl.errors import BudgetError, ConfigError, EndpointError
from skill_ttrl.llm.backend import Generation, Request, Sampling
from skill_ttrl.llm.openai.backend import GO_ON, TextBackend, all_of
from skill_ttrl.llm.openai.ledger import PROGRAM, Usage, counted_request
from skill_ttrl.sanitize import one_line
from skill_ttrl.types import Completion, Message, derive_seed

if TYPE_CHECKING:
    from skill_ttrl.llm.backend import BackendContext

PROGRAMS = 4
"""Most programs that run at once."""
MOST_OUTPUT_BYTES = 1 << 20
"""Longest answer; a program that writes more is killed, and the rollout fails."""
MOST_ERROR_BYTES = 64 << 20
"""Most that a program may write to stderr."""
LOOK_S = 0.01
"""Pause between two looks at the clock and the program, in seconds."""
KEPT_ERROR_BYTES = 4096
"""Of stderr the end is kept."""
MOST_BYTES = 64 << 20
"""Files of a command line that are larger are known by their size alone."""


@dataclass(frozen=True, slots=True)
class Finished:
    """The outcome of one run."""

    outcome: str
    """`ok`, `failed` (exit code, or no such program), `timeout`, `too_long` (output) or `cancelled`."""
    output: bytes = b""
    error_output: bytes = b""
    """End of stderr."""
    exit_code: int | None = None


def run_program(
    argv: Sequence[str],
    text: str,
    env: Mapping[str, str],
    cwd: str | Path,
    timeout: float,
    stopped: Callable[[], bool],
) -> Finished:
    """Run a program to its end, its limits, or until it is `stopped`; what is left of its process group is killed. It blocks.

    Raises:
        OSError: it cannot be started.
    """
    deadline, outcome = time.monotonic() + timeout, ""
    with TemporaryFile() as prompt, TemporaryFile() as output, TemporaryFile() as errors:
        prompt.write(text.encode("utf-8", "replace"))
        prompt.seek(0)
        process = subprocess.Popen(
            [*argv], stdin=prompt, stdout=output, stderr=errors, env={**env}, cwd=cwd, start_new_session=True
        )
        try:
            while not outcome:
                ended = process.poll() is not None
                if stopped():
                    outcome = "cancelled"
                elif _size(output) > MOST_OUTPUT_BYTES or _size(errors) > MOST_ERROR_BYTES:
                    outcome = "too_long"
                elif ended:
                    outcome = "ok"
                elif time.monotonic() >= deadline:
                    outcome = "timeout"
                else:
                    time.sleep(LOOK_S)
        finally:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            code = process.wait()
        output.seek(0)
        errors.seek(max(0, _size(errors) - KEPT_ERROR_BYTES))
        said = output.read(MOST_OUTPUT_BYTES), errors.read(KEPT_ERROR_BYTES)
    return Finished("failed" if outcome == "ok" and code else outcome, *said, code)


def _size(file: IO[bytes]) -> int:
    return os.fstat(file.fileno()).st_size


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
        self.timeout = context.settings.endpoints.timeout
        self.argv = found_program(self.config)
        self.name = shlex.join(self.config.argv)
        self._env = passed_environment(self.config, os.environ)
        self._pool = ThreadPoolExecutor(PROGRAMS, "command")
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
        answers = iter(
            await all_of(
                self._answer(request, sampling, derive_seed(seed, "command", place, number))
                for place, request in enumerate(requests)
                for number in range(request.n)
            )
        )
        return [Generation((), tuple(next(answers) for _ in range(request.n))) for request in requests]

    async def _answer(self, request: Request, sampling: Sampling, seed: int) -> Completion | BudgetError:
        left, begun = threading.Event(), threading.Event()
        env = {
            **self._env,
            "SKILLTTRL_SEED": str(seed % (1 << 31)),
            "SKILLTTRL_TEMPERATURE": f"{sampling.temperature:g}",
            "SKILLTTRL_MAX_NEW_TOKENS": str(request.limit(sampling)),
        }

        def stopped() -> bool:
            return left.is_set() or self._stop.is_set()

        def run() -> Finished:
            if stopped():
                return Finished("cancelled")
            begun.set()
            with TemporaryDirectory(prefix="skillttrl-command-", ignore_cleanup_errors=True) as folder:
                return run_program(self.argv, written_prompt(request), env, folder, self.timeout, stopped)

        try:
            async with counted_request(PROGRAM, self.config.argv[0], Usage(attempts=1)) as counted:
                try:
                    finished = await asyncio.get_running_loop().run_in_executor(self._pool, run)
                    counted.outcome = finished.outcome
                except OSError as error:
                    raise EndpointError(
                        f"Cannot start {self.name}: {error.strerror or error}.", "unreachable"
                    ) from None
                finally:
                    left.set()  # the one who asks may be gone: a program is not to go on without
                    # 0 where it was still in the queue when nobody waited for it any more.
                    counted.attempts = int(begun.is_set())
        except BudgetError as error:
            return error
        return self._completion(finished, sampling)

    def _completion(self, finished: Finished, sampling: Sampling) -> Completion:
        if finished.outcome != "ok":
            return Completion("", (), (), "error", self.policy_version, error=self._problem(finished))
        text = finished.output.decode("utf-8", "replace").rstrip("\n")
        ends = [text.find(stop) + len(stop) for stop in sampling.stop if stop in text]
        return Completion(text[: min(ends, default=len(text))], (), (), "stop", self.policy_version)

    def _problem(self, finished: Finished) -> str:
        """Say in a sentence why it failed, with the end of stderr. No variable's value is in it."""
        why = {
            "timeout": f"did not end within {self.timeout:g} s (endpoints.timeout) and was stopped",
            "too_long": f"wrote more than {MOST_OUTPUT_BYTES:,} bytes and was stopped",
            "cancelled": "was stopped before it answered",
            "failed": f"ended with exit code {finished.exit_code}",
        }[finished.outcome]
        said = finished.error_output.decode("utf-8", "replace").strip()
        for name in self.config.env:
            if len(self._env[name]) >= SHORTEST_SECRET:
                said = said.replace(self._env[name], f"[{name}]")
        return f"{self.name} {why}." + (f" Its stderr ends: {one_line(said[-SHOWN:])}" if said else "")


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
        ConfigError: there is no such program.
    """
    path = shutil.which(config.argv[0])
    if path is None:
        raise ConfigError(f"command.argv: {config.argv[0]!r} is neither a program on the PATH nor an executable file.")
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
            f"command.env names variables that are not set: {', '.join(missing)}. Set them, or leave them out."
        )
    return {name: environment[name] for name in (*PASSED, *config.env) if name in environment}


def names_file(argument: str) -> bool:
    """True if an argument names a file by a path (`agent.py`, `bin/agent`)."""
    return bool(Path(argument).suffix or "/" in argument) and os.path.isfile(argument)


def file_digests(config: CommandConfig) -> dict[str, str]:
    """The content of each file among the arguments, and of a program that is a script named by a path.

    An argument is looked up from here, as for a run of the program.
    """
    found = {each: _digest(Path(each)) for each in config.argv[1:] if names_file(each)}
    program = config.argv[0]
    if "/" in program and os.path.isfile(program):
        with suppress(OSError), open(program, "rb") as stream:
            if stream.read(2) == b"#!":  # an interpreter is no script: an update of the system is no other agent
                found[program] = _digest(Path(program))
    return dict(sorted(found.items()))


def _digest(path: Path) -> str:
    try:
        if (size := path.stat().st_size) > MOST_BYTES:
            return f"{size} bytes"
        with path.open("rb") as stream:
            return f"sha256:{hashlib.file_digest(stream, 'sha256').hexdigest()[:32]}"
    except OSError as error:
        return f"unreadable: {error.strerror}"
