"""Supervised processes: started, awaited, restarted when they die or hang, and ended together.

Nothing here knows what they serve: a `Job` is a command, an address that answers `/health`, and a log.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import httpx

from skill_ttrl.errors import ModelError
from skill_ttrl.storage.files import wrap_os_errors, write_atomic

Phase = Literal["starting", "ready", "waiting", "stopped"]
STATE_FILE = "servers.json"
SHOWN_LINES, SHOWN_BYTES = 15, 20_000
"""Lines of a log that a message shows, and where they are looked for, from its end."""
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class Job:
    """One process to keep running."""

    address: str
    """Base of its HTTP interface; `/health` there answers 200 once it is ready."""
    command: tuple[str, ...]
    log: Path
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    """On top of this process's own; a key may be in it."""
    gpus: str = ""
    """Those it may use, for the eye."""


@dataclass(frozen=True, slots=True)
class Patience:
    """Timeouts and pauses in seconds, and the limit on restarts."""

    start: float = 600.0
    """Until a process must be ready."""
    hang: float = 60.0
    """Until one that was ready and does not answer is ended."""
    quick: float = 60.0
    """A process that dies sooner after it was ready, or before, died quickly."""
    most_quick: int = 3
    """Quick deaths in a row after which it is not restarted any more."""
    first_pause: float = 1.0
    """Before the first restart; each quick death doubles it."""
    longest_pause: float = 60.0
    grace: float = 20.0
    """From the request to stop until it is forced."""
    look: float = 1.0
    """Between two looks at one process."""


@dataclass
class Watched:
    """A job and the process that does it at present."""

    job: Job
    phase: Phase = "waiting"
    process: subprocess.Popen[bytes] | None = None
    restarts: int = 0
    quick_deaths: int = 0
    since: float = 0.0
    """When the phase began; for `waiting`, when it ends. Monotonic seconds, as the next two."""
    answered: float = 0.0
    looked: float = 0.0

    def as_json(self) -> dict[str, object]:
        """For the state file."""
        return {
            "address": self.job.address,
            "phase": self.phase,
            "pid": self.process.pid if self.process is not None and self.process.poll() is None else None,
            "restarts": self.restarts,
            "gpus": self.job.gpus,
            "log": str(self.job.log),
        }


class Supervisor:
    """Keeps jobs running until `stop` is set.

    The state file in `folder`, `servers.json`, has addresses, process ids and logs. `changed` is called with all jobs whenever one has
    changed; `notice` gets messages about failures and restarts.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        folder: Path,
        *,
        patience: Patience | None = None,
        changed: Callable[[Sequence[Watched]], None] = lambda watched: None,
        notice: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.watched = [Watched(job) for job in jobs]
        self.stop = threading.Event()
        self._folder, self._patience = folder, patience or Patience()
        self._changed, self._notice = changed, notice
        self._client = httpx.Client(trust_env=False, timeout=5.0)

    def run(self) -> None:
        """Start everything and stay until `stop` is set, also by a signal. Call it from the main thread: what the kernel does
        when a process's parent ends goes by the thread that started it.

        Raises:
            ModelError: a job died quickly too often; all others have been ended.
        """
        with contextlib.ExitStack() as stack:
            for signum in STOPPING:
                stack.callback(signal.signal, signum, signal.signal(signum, lambda number, frame: self.stop.set()))
            stack.callback(self._end_all)
            while not self.stop.is_set():
                for each in self.watched:
                    self._look_after(each)
                self.stop.wait(min(0.2, self._patience.look))

    def _look_after(self, watched: Watched) -> None:
        now = time.monotonic()
        if watched.phase == "waiting":
            if now >= watched.since:
                self._start(watched)
            return
        assert watched.process is not None
        code = watched.process.poll()
        if code is not None:
            killed = f"was killed by signal {-code} ({signal.Signals(-code).name})" if code < 0 else ""
            self._died(watched, killed or f"ended with exit code {code}")
        elif now - watched.looked >= self._patience.look:
            watched.looked = now
            if self._answers(watched.job.address):
                watched.answered = time.monotonic()
                if watched.phase == "starting":
                    self._enter(watched, "ready")
            elif watched.phase == "starting" and now - watched.since > self._patience.start:
                self._died(watched, f"was not ready after {self._patience.start:.0f} s")
            elif watched.phase == "ready" and now - watched.answered > self._patience.hang:
                self._died(watched, f"has not answered for {self._patience.hang:.0f} s")

    def _answers(self, address: str) -> bool:
        try:
            return self._client.get(f"{address}/health").status_code == 200
        except httpx.TransportError:
            return False

    def _start(self, watched: Watched) -> None:
        job = watched.job
        with wrap_os_errors("write", job.log), open(job.log, "ab") as log:
            log.write(f"--- {time.strftime('%Y-%m-%d %H:%M:%S')}: start {watched.restarts + 1} ---\n".encode())
            log.flush()
            watched.process = subprocess.Popen(
                job.command,
                env={**os.environ, **job.environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # a Ctrl-C reaches it through us alone, and its children can be ended with it
            )
        self._enter(watched, "starting")

    def _died(self, watched: Watched, how: str) -> None:
        assert watched.process is not None
        _end_group(watched.process, signal.SIGKILL)  # what it may have left
        watched.process.wait()
        lived = time.monotonic() - watched.since if watched.phase == "ready" else 0.0
        watched.quick_deaths = watched.quick_deaths + 1 if lived < self._patience.quick else 0
        address, log = watched.job.address, watched.job.log
        if watched.quick_deaths >= self._patience.most_quick:
            raise ModelError(
                f"The server of {address} {how}. It has died {watched.quick_deaths} times in a row soon after its start and is "
                f"given up. The end of its log, {log}:\n{log_end(log)}"
            )
        doublings = max(0, watched.quick_deaths - 1)
        pause = min(self._patience.first_pause * 2**doublings, self._patience.longest_pause)
        watched.restarts += 1
        self._enter(watched, "waiting")
        watched.since += pause
        self._notice(f"The server of {address} {how}; it is started again in {pause:.0f} s. Its log: {log}")

    def _enter(self, watched: Watched, phase: Phase) -> None:
        watched.phase, watched.since = phase, time.monotonic()
        state = {"supervisor": os.getpid(), "servers": [each.as_json() for each in self.watched]}
        with wrap_os_errors("write", self._folder / STATE_FILE):
            write_atomic(self._folder / STATE_FILE, json.dumps(state, indent=2).encode() + b"\n")
        self._changed(self.watched)

    def _end_all(self) -> None:
        processes = [each.process for each in self.watched if each.process is not None]
        for process in processes:
            _end_group(process, signal.SIGTERM)
        deadline = time.monotonic() + self._patience.grace
        for process in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
            _end_group(process, signal.SIGKILL)
            process.wait()
        self._client.close()
        for each in self.watched:
            self._enter(each, "stopped")


def log_end(log: Path) -> str:
    """The last lines of a log."""
    try:
        with open(log, "rb") as file:
            file.seek(max(0, log.stat().st_size - SHOWN_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError as error:
        return f"(it cannot be read: {error.strerror})"
    return "\n".join(lines[-SHOWN_LINES:])


def _end_group(process: subprocess.Popen[bytes], signum: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signum)  # it leads a session of its own
