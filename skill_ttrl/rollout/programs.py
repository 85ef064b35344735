"""A program of the user's that plays an episode: it gets the task, calls the model through a gateway as often as it likes, and prints its answer.

Each rollout has a process and a working folder of its own. A program that fails, hangs or writes without end is a failed rollout. With
`rollout.backend: none` there is no gateway: the program brings its own model, and each of its runs is a request in the ledger; what it spends
elsewhere is unknown.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile, gettempdir
from typing import IO, Any, cast

from skill_ttrl.answers import find_answer
from skill_ttrl.config import ProgramConfig
from skill_ttrl.cores import cores
from skill_ttrl.data.tasks import MATH_ENV_ID
from skill_ttrl.errors import ConfigError, EndpointError
from skill_ttrl.llm.backend import Backend, Sampling
from skill_ttrl.llm.hand_over import LEFT, BatchingBackend, refuse_abandoned
from skill_ttrl.llm.openai.backend import ProgramBackend
from skill_ttrl.llm.openai.ledger import PROGRAM, CountedRequest, Usage, counted_request
from skill_ttrl.llm.openai.replies import sound
from skill_ttrl.rollout import strays
from skill_ttrl.rollout.episode import ActiveRollout
from skill_ttrl.rollout.gateway import MODEL, Gateway, Session
from skill_ttrl.sanitize import one_line
from skill_ttrl.skills.changes import Snapshot
from skill_ttrl.skills.files import dump_agentskills
from skill_ttrl.storage.files import wrap_os_errors
from skill_ttrl.storage.jsonl import parse_json
from skill_ttrl.types import Completion, Message, Skill, Step
from skill_ttrl.voting.rewards import as_reward

PROGRAMS, PROGRAMS_PER_CORE = 64, 8
"""Most programs that run at once: on this machine, and for each of its cores."""
TIME_LIMIT_S = 600.0
"""Longest run of a program where `rollout.rollout_timeout_s` is None, in seconds."""
MOST_OUTPUT_BYTES = 1 << 20
"""Longest output; a program that writes more is killed, and the rollout fails."""
MOST_ERROR_BYTES = 64 << 20
"""Most that a program may write to stderr."""
FOLDER, STALE_S = "skillttrl-programs-", 86400.0
"""Beginning of the names of temporary folders, and the seconds without a new rollout after which one is removed."""
LOOK_S = 0.02
"""Seconds between two checks of a running program."""
KEPT_ERROR_BYTES = 4096
"""Bytes of the end of stderr that are recorded."""
PASSED = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "SYSTEMROOT")
"""Environment variables that every program gets."""
NAME_CHARS = 80
"""Longest command line in a message, in characters."""
SHOWN = 400
"""Characters of stderr in a message."""
SHORTEST_SECRET = 6
"""Values of variables that are shorter are not masked in messages, in characters."""
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{3}")
"""A word, and no LaTeX command or variable."""
SCRIPTS = (".py", ".sh", ".js")
"""Endings of a first argument that has to be a file: the script that an interpreter runs."""


@dataclass(frozen=True, slots=True)
class Finished:
    """The outcome of one run."""

    outcome: str
    """`ok`, `failed` (exit code), `timeout`, `too_long` (output) or `cancelled`."""
    output: bytes = b""
    error_output: bytes = b""
    """End of stderr."""
    exit_code: int | None = None
    seconds: float = 0.0


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
    began, outcome = time.monotonic(), ""
    with TemporaryFile() as given, TemporaryFile() as output, TemporaryFile() as errors:
        given.write(text.encode("utf-8", "replace"))
        given.seek(0)
        process = subprocess.Popen(
            [*argv], stdin=given, stdout=output, stderr=errors, env={**env}, cwd=cwd, start_new_session=True
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
                elif time.monotonic() >= began + timeout:
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
    seconds = time.monotonic() - began
    return Finished("failed" if outcome == "ok" and code else outcome, *said, code, seconds)


def _size(file: IO[bytes]) -> int:
    return os.fstat(file.fileno()).st_size


@asynccontextmanager
async def open_programs(
    config: ProgramConfig, backend: Backend, sampling: Sampling, max_prompt_tokens: int | None
) -> AsyncIterator[Programs]:
    """Open what runs a program once for each rollout, with a gateway to the model while this is entered.

    Args:
        config: the program.
        backend: the model; a `ProgramBackend` is none, and then there is no gateway.
        sampling: of the model.
        max_prompt_tokens: longest prompt of a call.

    Raises:
        ConfigError: the program, or a variable that it is to get, is not there.
    """
    argv, env = found_program(config), passed_environment(config, os.environ)
    for old in Path(gettempdir()).glob(f"{FOLDER}*"):  # of a machine that was switched off
        with suppress(OSError):
            if time.time() - old.stat().st_mtime > STALE_S:
                shutil.rmtree(old)
    with (
        TemporaryDirectory(prefix=FOLDER, ignore_cleanup_errors=True) as folder,
        ExitStack() as last,
        ThreadPoolExecutor(min(PROGRAMS, PROGRAMS_PER_CORE * cores()), "program") as pool,
    ):
        watch = [sys.executable, "-P", strays.__file__, folder]  # for the case that this process is killed
        watcher = subprocess.Popen(watch, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True)
        last.enter_context(watcher)
        last.callback(watcher.kill)
        last.callback(strays.end_strays, folder)
        found = Programs(config, argv, env, sampling, pool, Path(folder))
        if isinstance(backend, ProgramBackend):
            yield found
            return
        if getattr(backend, "blocking", False):
            backend = cast(Backend, BatchingBackend(backend, lambda: len(found.running)))
        async with Gateway(backend, sampling, max_prompt_tokens=max_prompt_tokens) as found.gateway:
            yield found


@dataclass
class Programs:
    """Runs a program once for each rollout (`open_programs`)."""

    config: ProgramConfig
    argv: Sequence[str]
    """As it is run: with whole paths."""
    env: Mapping[str, str]
    """Environment of every run."""
    sampling: Sampling
    pool: ThreadPoolExecutor
    folder: Path
    """Holds the working folder of each run."""
    gateway: Gateway | None = None
    running: set[threading.Event] = field(default_factory=set)
    """One for each program that runs now: as many calls of the model may come at once."""
    left: threading.Event | None = field(default_factory=LEFT.get)
    """Set when the run has abandoned these rollouts."""

    async def play(
        self, episode: ActiveRollout, messages: Sequence[Message], document: str, seed: int, max_turns: int
    ) -> None:
        """Run the program, and hand its answer to the episode's environment.

        Args:
            episode: the rollout, whose environment has been reset.
            messages: the prompt that the model would get.
            document: the skill document; empty: none.
            seed: of the rollout.
            max_turns: longest episode.

        Raises:
            BudgetError, WorkerError: the model could not answer, through no fault of the program's.
            EndpointError: the program can no longer be started.
        """
        session = None if self.gateway is None else self.gateway.session(seed)
        skills = [*episode.skills, *([Skill("document", "Skill document", document)] if document.strip() else ())]
        task = {
            "id": episode.task.id,
            "question": episode.observation,
            "prompt": "\n\n".join(message.content for message in messages),
            "messages": [{"role": message.role, "content": message.content} for message in messages],
            "task_type": episode.task.task_type,
            "seed": seed % (1 << 31),
            "temperature": self.sampling.temperature,
            "max_new_tokens": self.sampling.max_new_tokens,
        }
        finished = await self._run(task, skills, episode.remaining_s or TIME_LIMIT_S, session)
        episode.elapsed_s += finished.seconds
        refuse_abandoned()
        if session is not None and session.error is not None:
            raise session.error
        episode.by_program = True
        episode.steps = [] if session is None else session.calls
        said = finished.output.decode("utf-8", "replace")
        try:
            if finished.outcome != "ok":
                raise ValueError(_why(finished, episode.seconds or TIME_LIMIT_S))
            answer, reward = read_answer(said, episode.task.env_id)
            if session is None:
                whole = Completion(said.rstrip("\n"), (), (), "stop")
                episode.steps = [Step(episode.observation, answer, 0.0, False, False, completion=whole)]
            if not episode.steps:
                raise ValueError(
                    "answered without a call of the model, which it finds at OPENAI_BASE_URL with OPENAI_API_KEY and OPENAI_MODEL (one "
                    "with a model of its own is the policy none)"
                )
        except ValueError as error:
            episode.stop_reason = "timeout" if finished.outcome == "timeout" else "error"
            episode.error = f"{self._name} {error}.{self._last_words(finished, session)}"
            return
        await episode.act_program(answer, reward, max_turns)

    @property
    def _name(self) -> str:
        return one_line(shlex.join(self.config.argv), NAME_CHARS)

    async def _run(
        self, task: Mapping[str, Any], skills: Sequence[Skill], limit: float, session: Session | None
    ) -> Finished:
        gone, own_model = threading.Event(), counted_request(PROGRAM, self.config.argv[0], Usage(attempts=1))
        async with nullcontext(CountedRequest(1)) if session else own_model as counted:

            def stopped() -> bool:
                left = self.left is not None and self.left.is_set()
                return left or gone.is_set() or (session is not None and session.error is not None)

            def run() -> Finished:
                if stopped():
                    return Finished("cancelled")
                counted.attempts = 1
                self.running.add(gone)
                try:
                    with TemporaryDirectory(dir=self.folder, ignore_cleanup_errors=True) as folder:
                        text, env = write_task(Path(folder), task, skills)
                        if session is not None:
                            env |= {"OPENAI_BASE_URL": session.url, "OPENAI_API_KEY": session.key}
                            env["OPENAI_MODEL"] = MODEL
                        return run_program(self.argv, text, {**self.env, **env}, folder, limit, stopped)
                finally:
                    self.running.discard(gone)

            try:
                finished = await asyncio.get_running_loop().run_in_executor(self.pool, run)
            except OSError as error:
                raise EndpointError(f"Cannot start {self._name}: {error.strerror or error}.", "unreachable") from None
            finally:
                gone.set()  # a cancelled rollout stops its program
                if session is not None:
                    session.close()
            counted.outcome = finished.outcome
            return finished

    def _last_words(self, finished: Finished, session: Session | None) -> str:
        """Quote the end of stderr, without the value of any variable that only the program gets."""
        said = finished.error_output.decode("utf-8", "replace").strip()
        secrets = {name: self.env[name] for name in self.config.env}
        secrets |= {} if session is None else {"OPENAI_API_KEY": session.key}
        for name, value in sorted(secrets.items(), key=lambda each: -len(each[1])):  # one may begin with another
            if len(value) >= SHORTEST_SECRET:
                said = said.replace(value, f"[{name}]")
        said = re.sub(r"(?m)^[ ~^]+$\n?", "", said)  # what a traceback underlines
        return f" Its stderr ends: {one_line(said[-SHOWN:])}" if said else ""


def _why(finished: Finished, most_s: float) -> str:
    """Describe why a program failed; the rollout of one that was `cancelled` raises instead."""
    return {
        "timeout": f"did not end within {most_s:g} s (rollout.rollout_timeout_s) and was stopped",
        "too_long": f"wrote more than {MOST_OUTPUT_BYTES:,} bytes and was stopped",
        "failed": f"ended with exit code {finished.exit_code}",
    }[finished.outcome]


def write_task(folder: Path, task: Mapping[str, Any], skills: Sequence[Skill]) -> tuple[str, dict[str, str]]:
    """Write the task and its skills into the program's folder; gives the text for stdin, and the variables that name both."""
    file, shown = folder / "task.json", folder / "skills"
    shown.mkdir()
    for name, written in dump_agentskills(Snapshot.of(0, skills)).items():
        (shown / name).parent.mkdir()
        (shown / name).write_text(written, encoding="utf-8")
    listed = [{name: getattr(skill, name) for name in ("id", "title", "text", "when_to_apply")} for skill in skills]
    text = json.dumps({**task, "skills": listed, "skills_dir": str(shown)})
    file.write_text(text, encoding="utf-8")
    return text, {"SKILLTTRL_TASK": str(file), "SKILLTTRL_SKILLS": str(shown)}


def read_answer(output: str, env_id: str) -> tuple[str, float | None]:
    """The action and the reward that a program printed: those of a JSON object with `answer` in its last line, else all that it printed.

    Where mathematics expects an answer that is marked as one, a stated answer and a single line without words are marked here.

    Raises:
        ValueError: it printed nothing, or the reward is no number.
    """
    text, reward, stated = output.strip(), None, False
    if not text:
        raise ValueError("printed no answer")
    with suppress(ValueError):
        found = sound(parse_json(text.rpartition("\n")[2]))
        if isinstance(found, dict) and "answer" in found:
            answer, reward, stated = found["answer"], found.get("reward"), True
            text = answer if isinstance(answer, str) else "" if answer is None else json.dumps(answer)
    try:
        reward = None if reward is None else as_reward(reward)
    except (TypeError, ValueError):
        raise ValueError(f"gave the reward {reward!r:.80}, which is no number to learn from") from None
    bare = stated or not ("\n" in text or _WORD.search(text))
    if text and env_id == MATH_ENV_ID and bare and find_answer(text) is None:
        text = f"<answer>{text}</answer>"
    return text, reward


def found_program(config: ProgramConfig) -> list[str]:
    """The command as it is run: its program, and arguments that name a file by a path (`agent.py`, `bin/agent`), with their whole paths.

    Both are looked up from here, whatever folder it runs in.

    Raises:
        ConfigError: there is no such program, or no such script.
    """
    program, *arguments = config.argv
    path = shutil.which(program)
    if path is None:
        raise ConfigError(f"program.argv: {program!r} is neither a program on the PATH nor an executable file.")
    if arguments and arguments[0].endswith(SCRIPTS) and not os.path.isfile(arguments[0]):
        raise ConfigError(f"program.argv: there is no file {arguments[0]} (looked up from {os.getcwd()}).")
    files = (os.path.abspath(each) if names_file(each) else each for each in arguments)
    return [os.path.abspath(path), *files]


def passed_environment(config: ProgramConfig, environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of a program: `PASSED`, and the variables that the config names.

    Raises:
        ConfigError: one of those is not set.
    """
    missing = [name for name in config.env if name not in environment]
    if missing:
        raise ConfigError(
            f"program.env names variables that are not set: {', '.join(missing)}. Set them, or leave them out."
        )
    return {name: environment[name] for name in (*PASSED, *config.env) if name in environment}


def names_file(argument: str) -> bool:
    """True if an argument names a file by a path (`agent.py`, `bin/agent`)."""
    return bool(Path(argument).suffix or "/" in argument) and os.path.isfile(argument)


def file_digests(config: ProgramConfig) -> dict[str, str]:
    """The content of each file among the arguments, and of a program that is a script named by a path.

    An argument is looked up from here, as for a run of the program.
    """
    found = {}
    for place, name in enumerate(config.argv):
        if names_file(name) and (place or "/" in name):
            with wrap_os_errors("read", Path(name)), open(name, "rb") as stream:
                # An interpreter is no script: an update of the system is no other agent.
                if place or stream.read(2) == b"#!":
                    stream.seek(0)
                    found[name] = f"sha256:{hashlib.file_digest(stream, 'sha256').hexdigest()[:32]}"
    return dict(sorted(found.items()))
