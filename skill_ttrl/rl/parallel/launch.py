"""Starts the ranks of a run on this machine, in place of `torchrun`: signals reach rank 0 once, and its exit code is the command's.

`torchrun` gives a process 30 seconds after a signal and always ends with exit code 1; a run finishes its step and saves, which takes
longer, and its exit code says what happened. The environment of a rank is torchrun's, so a rank does not see the difference.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Literal

from skill_ttrl.config import RuntimeConfig
from skill_ttrl.cores import cores
from skill_ttrl.errors import ConfigError, RankError
from skill_ttrl.signals import handle, restore

# The environment by which `torchrun` and `launch` say how many ranks there are. Alone, so that asking loads nothing else.


LAUNCH_VARIABLES = (
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK", "ROLE_WORLD_SIZE"),
    *("MASTER_ADDR", "MASTER_PORT"),
)
_taken: dict[str, str] = {}


def launched() -> bool:
    """True if this process is one of several ranks."""
    return world_size() > 1


def world_size() -> int:
    """Number of ranks; 1 without a launcher."""
    return int(_value("WORLD_SIZE") or 1)


def local_world_size() -> int:
    """Number of ranks on this machine."""
    return int(_value("LOCAL_WORLD_SIZE") or world_size())


def rank() -> int:
    """Number of this rank; 0 without a launcher."""
    return int(_value("RANK") or 0)


def local_rank() -> int:
    """Number of this rank among those of this machine; 0 without a launcher."""
    return int(_value("LOCAL_RANK") or _value("RANK") or 0)


def take_variables() -> None:
    """Take the variables out of the environment: an engine or an environment that this process starts is no rank."""
    for name in LAUNCH_VARIABLES:
        if name in os.environ:
            _taken[name] = os.environ.pop(name)


def _value(name: str) -> str | None:
    return _taken.get(name) or os.environ.get(name)


# How several ranks hold the policy, by `runtime.parallel`. Loads no torch: the rules on settings ask too.


Strategy = Literal["alone", "ddp", "fsdp"]


def strategy(runtime: RuntimeConfig, ranks: int, *, on_gpu: bool) -> Strategy:
    """`alone` for one rank; else `ddp` or `fsdp`.

    Args:
        runtime: The settings.
        ranks: Number of ranks.
        on_gpu: True if the ranks compute on GPUs.

    Raises:
        ConfigError: the settings and the number of ranks do not fit together.
    """
    if ranks == 1:
        if runtime.parallel == "fsdp":
            raise ConfigError(
                "runtime.parallel is fsdp, but there is only one process to shard weights over. Start it with --nproc 2 "
                "or more (or torchrun), or set runtime.parallel=auto."
            )
        return "alone"
    chosen: Strategy = "fsdp" if on_gpu else "ddp"
    if runtime.parallel != "auto":
        chosen = runtime.parallel
    if chosen == "fsdp" and runtime.precision == "fp16":
        raise ConfigError(
            "runtime.precision=fp16 scales the loss, and the ranks of runtime.parallel=fsdp would not scale it alike. Use bf16."
        )
    return chosen


LAUNCHER = "SKILLTTRL_LAUNCHER"
"""Environment variable with the launcher's process id: a rank 0 whose launcher is gone stops as at SIGTERM."""
GRACE_S = 30.0
"""After another rank has failed rank 0 ends by itself within this time (its collectives fail), or is killed."""
LINGER_S = 5.0
"""After rank 0 has ended, or a second Ctrl-C, the others have this time."""
_POLL_S = 0.05
_TAIL_LINES = 30


def launch(
    command: Sequence[str], count: int, *, notice: Callable[[str], None], saved: Callable[[], str] = lambda: ""
) -> int:
    """Start `command` as ranks 0 to `count` - 1 and wait for them.

    Rank 0 has this process's terminal; what the others write is shown where they fail. Each has a process group of its own, so that
    Ctrl-C comes to them from here alone: SIGINT, SIGTERM and SIGUSR1 are passed to rank 0.

    Args:
        command: program and arguments.
        count: number of ranks, at least 2.
        notice: called with each line for the user about a rank that failed.
        saved: gives the sentence on what is saved, once a rank has died.

    Returns:
        The exit code: rank 0's, or `RankError`'s where a rank was killed.
    """
    with tempfile.TemporaryDirectory(prefix="skillttrl-ranks-") as folder, _Crew(Path(folder), notice, saved) as crew:
        environment = _environment(count)
        for rank in range(count):
            crew.start(command, environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)})
        return crew.wait()


class _Crew:
    """The processes of a run."""

    def __init__(self, folder: Path, notice: Callable[[str], None], saved: Callable[[], str]) -> None:
        self._folder, self._notice, self._saved = folder, notice, saved
        self._ranks: list[subprocess.Popen[bytes]] = []
        self._killed: set[subprocess.Popen[bytes]] = set()
        self._interrupts = 0
        self._passed: int | None = None  # the last signal that came
        self._deadline: float | None = None

    def __enter__(self) -> _Crew:
        self._before = handle(self._pass_on)
        return self

    def __exit__(self, *_: object) -> None:
        self._kill(self._ranks)
        restore(self._before)

    def start(self, command: Sequence[str], environment: dict[str, str]) -> None:
        rank = len(self._ranks)
        with (self._folder / str(rank)).open("wb") as output:
            pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": output} if rank else {}
            self._ranks.append(subprocess.Popen(command, env=environment, process_group=0, **pipes))
        if rank == 0 and self._passed is not None:  # it came before there was a rank to pass it to
            self._ranks[0].send_signal(self._passed)

    def wait(self) -> int:
        """The exit code, once all have ended."""
        driver, others = self._ranks[0], self._ranks[1:]
        while driver.poll() is None:
            if self._deadline is None and any(each.poll() for each in others):
                self._deadline = time.monotonic() + GRACE_S
            if self._deadline is not None and time.monotonic() > self._deadline:
                self._kill([driver])
            time.sleep(_POLL_S)
        until = time.monotonic() + (LINGER_S if self._interrupts < 2 else 0.0)
        while any(each.poll() is None for each in others) and time.monotonic() < until:
            time.sleep(_POLL_S)
        self._kill(others)
        return self._verdict()

    def _verdict(self) -> int:
        """The exit code. Ranks whose end rank 0 cannot have explained are named, with the end of what they wrote."""
        codes = [each.returncode for each in self._ranks]
        if self._interrupts > 1:
            return 128 + signal.SIGINT
        if self._passed is not None and codes[0] == -self._passed:  # rank 0 was starting, and did not listen yet
            self._notice(f"Interrupted by signal {self._passed}. {self._saved()}".rstrip())
            return 128 + self._passed
        if (codes[0] > 1 and codes[0] != RankError.exit_code) or codes[0] == 0:  # it has said why, or all is done
            return codes[0]
        died: list[str] = []
        tails: list[str] = []
        for rank, (process, code) in enumerate(zip(self._ranks, codes, strict=True)):
            if process in self._killed or code in (0, RankError.exit_code) or (code > 0 and not rank):
                continue  # ended by the launcher, or because another rank was gone, or with a message of its own
            what = f"Rank {rank} of {len(codes)} {_ended(code)}"
            if code < 0 or codes[0] != 1:
                died.append(what)
            written = (self._folder / str(rank)).read_text(encoding="utf-8", errors="replace") if rank else ""
            tail = [f"  rank {rank}: {line}" for line in written.splitlines()[-_TAIL_LINES:]]
            tails += [f"{what}. Its last output:", *tail] if tail else []
        if died:
            self._notice(f"Error: {'; '.join(died)}, and the run ended with it. {self._saved()}".rstrip())
        for line in tails:
            self._notice(line)
        return codes[0] if codes[0] > 0 else RankError.exit_code

    def _pass_on(self, signum: int, frame: FrameType | None) -> None:
        self._passed = signum
        if self._ranks and self._ranks[0].poll() is None:
            self._ranks[0].send_signal(signum)
        self._interrupts += signum == signal.SIGINT
        if self._interrupts > 1:
            self._deadline = time.monotonic() + LINGER_S

    def _kill(self, processes: Sequence[subprocess.Popen[bytes]]) -> None:
        for each in processes:
            if each.poll() is None:
                self._killed.add(each)
                each.kill()
        for each in processes:
            each.wait()


def _ended(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    killed = " (usually because memory ran out)" if -code == signal.SIGKILL else ""
    return f"was killed by {name}{killed}"


def _environment(count: int) -> dict[str, str]:
    """The environment of all ranks; threads are shared out where the user has not."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    return {
        "OMP_NUM_THREADS": str(max(1, cores() // count)),
        **os.environ,
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        LAUNCHER: str(os.getpid()),
    }


def this_command() -> list[str]:
    """The command line of this process again, as a rank runs it."""
    return [sys.executable, "-P", "-m", "skill_ttrl.cli.entry", *sys.argv[1:]]


@contextmanager
def following_launcher() -> Iterator[None]:
    """While entered, rank 0 gets SIGTERM once its launcher is gone. Nothing where `launch` did not start it."""
    import threading

    launcher, done = os.environ.pop(LAUNCHER, None), threading.Event()
    if launcher is None:
        yield
        return

    def watch() -> None:
        while not done.wait(1.0):
            if os.getppid() != int(launcher):
                os.kill(os.getpid(), signal.SIGTERM)
                return

    threading.Thread(target=watch, name="launcher", daemon=True).start()
    try:
        yield
    finally:
        done.set()
