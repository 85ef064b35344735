"""The `command` backend: a program of the user's, such as a command-line coding agent, in the place of a model.

The prompt goes in on stdin, the answer is stdout. It knows texts alone, and its weights, if it has any, stay as they are. A program that fails,
hangs or writes without end is a completion with the reason in `error`. Each run is a request in the ledger; what it spends elsewhere nobody
here knows.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import tempfile
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from skill_ttrl.config import CommandConfig
from skill_ttrl.errors import BudgetError, ConfigError, EndpointError
from skill_ttrl.llm.backend import Generation, Request, Sampling
from skill_ttrl.llm.command.files import names_file
from skill_ttrl.llm.command.process import Bounds, Finished, run_program
from skill_ttrl.llm.openai.backend import GO_ON, TextBackend
from skill_ttrl.llm.openai.failures import printable
from skill_ttrl.llm.openai.ledger import PROGRAM, CountedRequest, Spend
from skill_ttrl.types import Completion, Message, derive_seed

if TYPE_CHECKING:
    from skill_ttrl.llm.context import BackendContext

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
        if context.model.trains:
            raise ConfigError(
                "rollout.backend=command cannot be trained: nothing here changes what a program does. Measure it, or optimize the "
                "document that it reads."
            )
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
            async with CountedRequest(PROGRAM, self.config.argv[0], Spend(requests=1)) as counted:
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
