"""Commands: the driver (rank 0) calls a function, and every rank runs it on its own objects.

A command is a module's own function, so that its name can be sent; its first argument are this rank's `Objects`. All ranks run it
at the same time, so it may use the collectives of `Ranks` and those of sharded weights.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

from skill_ttrl.errors import ModelError, RankError, SkillTTRLError
from skill_ttrl.rl.out_of_memory import out_of_memory
from skill_ttrl.rl.parallel.ranks import Ranks, current_ranks, leave
from skill_ttrl.signals import SIGNALS, signals_held

P = ParamSpec("P")
T = TypeVar("T")


class Objects(dict[str, Any]):
    """Objects of one rank that commands work on, by the name under which a command has put them there: `policy`, `learner`, `backend`."""

    def __init__(self, ranks: Ranks) -> None:
        super().__init__()
        self.ranks = ranks


Command = Callable[Concatenate[Objects, P], T]


class Driver:
    """Rank 0's hold on the others."""

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self.objects = Objects(ranks)
        self.in_step = True
        """False once a command failed half way: the other ranks take no more."""
        self._lock = threading.RLock()

    def run(self, command: Command[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `command` on every rank and return what it gives here.

        Signals wait until it is done: all ranks run the same commands, or none.

        Raises:
            RankError: another rank failed, or is gone.
        """
        if not self.ranks.several:
            return command(self.objects, *args, **kwargs)
        if not self.in_step:
            raise RankError("A command failed on one rank, so the ranks of the run are no longer in step.")
        with self._lock, signals_held():
            self.in_step = False
            self.ranks.broadcast((command, args, kwargs))
            with self.ranks.watched():
                result = command(self.objects, *args, **kwargs)
            self.in_step = True
        return result

    def forget(self) -> None:
        """Let go of all objects on every rank, at the end of a run. Where a command failed half way only here: the others will end."""
        self.objects.clear()
        if self.ranks.several and self.in_step:
            self.run(forget)

    def dismiss(self) -> None:
        """End the others, if they wait for a command. Where one of theirs failed half way they end when this process does."""
        if self.ranks.several and self.in_step:
            self.in_step = False
            self.ranks.broadcast(None)
            leave()


_driver: Driver | None = None


def current_driver() -> Driver:
    """The hold on the ranks that this process has joined (`ranks.join`); one for the whole process, which may train several times."""
    global _driver
    if _driver is None or _driver.ranks is not current_ranks():
        _driver = Driver(current_ranks())
    return _driver


def call(objects: Objects, name: str, method: str, /, *args: Any, **kwargs: Any) -> Any:
    """Command: call a method of each rank's object of this name."""
    return getattr(objects[name], method)(*args, **kwargs)


def forget(objects: Objects) -> None:
    """Command: let go of all objects, at the end of a run."""
    objects.clear()


def serve(ranks: Ranks) -> None:
    """Carry out the driver's commands until it dismisses this rank.

    A signal to stop is the driver's business: the others do what it says. A rank that fails leaves the reason for the driver and
    ends the process at once: the others notice that the connection is closed.
    """
    for signum in SIGNALS:
        signal.signal(signum, signal.SIG_IGN)
    objects = Objects(ranks)
    try:
        while (order := ranks.broadcast(None)) is not None:
            command, args, kwargs = order
            with ranks.watched():
                command(objects, *args, **kwargs)
        leave()
    except RankError as error:  # the driver or another rank is gone, and whoever failed has said why
        print(f"Rank {ranks.rank}: {error}", file=sys.stderr, flush=True)
        os._exit(RankError.exit_code)
    except BaseException as error:
        ranks.report_failure(error)
        # The launcher shows what a rank wrote last, where the driver could not say it.
        known = isinstance(error, SkillTTRLError) or out_of_memory(error) is not None
        print(f"{type(error).__name__}: {error}" if known else traceback.format_exc(), file=sys.stderr, flush=True)
        os._exit(getattr(error, "exit_code", ModelError.exit_code if known else 1))
