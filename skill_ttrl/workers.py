"""One pool of worker processes: an ordered map over workers that come and go.

Results are yielded in the order of the items, each exactly once, to one caller, who writes them down: a worker that dies loses nothing and
doubles nothing. A crew says what happens to the workers: `ProcessCrew` starts processes of this machine, `scale.cluster.RayCrew` actors of a Ray
cluster.

Not `concurrent.futures`: its processes stay for ever when the one that started them is killed, and one that is killed itself takes all results
along.
"""

from __future__ import annotations

import heapq
import multiprocessing
import pickle
import signal
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Literal, cast

from skill_ttrl.errors import SkillTTRLError, WorkerError

Work = Callable[[Any], Any]
Setup = Callable[[], tuple[Work, Any]]
"""Makes in a worker the function that works on an item, and facts for the caller. A module's own function, or a `partial` of one."""
Notice = Callable[[str], None]

WINDOW = 4
"""Items of each worker that may be done, or under way, ahead of the first one that is missing."""
RETRIES = 3
"""Times that an item is given to another worker because its worker has died."""
WAIT_S = 1.0
"""Longest wait for an event, in seconds."""


@dataclass(frozen=True, slots=True)
class Event:
    """A change in the state of a worker."""

    kind: Literal["ready", "refused", "done", "lost"]
    """It has made what it works with; its setup raised, and it ends; it has finished its item; it is gone, and what it was at with it."""
    worker: str
    result: Any = None
    """Of `done`; of `ready` the facts that its setup gives, the same for every worker."""
    error: Exception | None = None
    """Exception of the setup or of the item's own code."""
    why: str = ""
    """Why it is gone."""


@dataclass(eq=False)
class _Work:
    """The items of one map."""

    items: Sequence[Any]
    prepare: Callable[[Any], Any]
    waiting: list[int]
    """Numbers of the items that no worker has, as a heap: the first ones come first, also after a worker has died."""
    first: int = 0
    """Number of the first item that is missing."""
    early: dict[int, Event] = field(default_factory=dict)
    deaths: Counter[int] = field(default_factory=Counter)

    def has_next(self, ahead: int) -> bool:
        """True if there is an item for a worker, no more than so many ahead of the first one that is missing."""
        return bool(self.waiting) and self.waiting[0] < self.first + ahead


class Pool:
    """Workers, and the items that they work on, one after another. Several threads may map at the same time: first come, first served.

    Args:
        crew: the workers: what has `give`, `wait`, `close` and `advice` like `ProcessCrew`.
        notice: called with what a user should know.
        retries: see `RETRIES`.
    """

    def __init__(self, crew: Any, notice: Notice, retries: int = RETRIES) -> None:
        self._crew, self._notice, self._retries = crew, notice, retries
        self._at: dict[str, tuple[_Work, int] | None] = {}  # ready workers, and the item that each is at
        self._facts: list[Any] = []
        self._failed_starts = 0
        self._maps: list[_Work] = []
        self._failure: Exception | None = None
        self._changed = threading.Condition(threading.RLock())
        self._waits = False  # a thread waits for the crew; the others wait for it

    def facts(self) -> Any:
        """Facts that the setup gives, as soon as one worker is ready.

        Raises:
            WorkerError: workers die before they are ready.
            Exception: whatever the setup raised.
        """
        for _ in self._events(lambda: bool(self._facts)):
            pass
        return self._facts[0]

    def map(
        self,
        items: Sequence[Any],
        stop: Callable[[], None] = lambda: None,
        prepare: Callable[[Any], Any] = lambda item: item,
    ) -> Generator[Any]:
        """Yield the result of each item, in the order of the items.

        Args:
            items: inputs.
            prepare: makes of an item what a worker is given, at the moment when it is.
            stop: called again and again while a result is waited for; what it raises ends the map.

        Raises:
            WorkerError: an item's workers die, more often than is retried; or the pool is closed.
            Exception: whatever the work on an item raised, after the results of the items before it.
        """
        work = _Work(items, prepare, list(range(len(items))))
        with self._changed:
            self._maps.append(work)
        try:
            for number in range(len(items)):
                work.first = number
                for _ in self._events(partial(work.early.__contains__, number)):
                    stop()
                done = work.early.pop(number)
                if done.error is not None:
                    raise done.error
                yield done.result
        finally:
            with self._changed:
                self._maps.remove(work)

    def close(self) -> None:
        """Stop all workers; a map in another thread ends with a `WorkerError`."""
        with self._changed:
            self._failure = self._failure or WorkerError("The workers were stopped.")
            self._changed.notify_all()
        self._crew.close()

    def _events(self, reached: Callable[[], bool]) -> Iterator[None]:
        """Have the workers work, and yield after whatever has happened to any of them, until it is `reached`."""
        while True:
            with self._changed:
                if self._failure is not None:
                    raise self._failure
                self._give()
                if reached():
                    return
                follows = self._waits
                if follows:
                    self._changed.wait(WAIT_S)
                else:
                    self._waits = True
            if not follows:
                self._lead(WAIT_S)
            yield

    def _lead(self, seconds: float) -> None:
        """Wait for the crew, in the place of all threads that map."""
        events: Sequence[Event] = ()
        try:
            events = self._crew.wait(seconds)
        finally:
            with self._changed:
                self._waits = False
                for event in events:
                    self._take(event)
                self._changed.notify_all()

    def _give(self) -> None:
        """Give idle workers the next items, not too far ahead of the first one of their map that is missing."""
        ahead = WINDOW * len(self._at)
        for worker, busy in self._at.items():
            work = None if busy else next((each for each in self._maps if each.has_next(ahead)), None)
            if work is not None:
                number = heapq.heappop(work.waiting)
                self._at[worker] = work, number
                self._crew.give(worker, work.prepare(work.items[number]))

    def _take(self, event: Event) -> None:
        if event.kind == "ready":
            self._at[event.worker], self._failed_starts = None, 0
            self._facts = self._facts or [event.result]
        elif event.kind == "done":
            busy, self._at[event.worker] = self._at[event.worker], None
            assert busy is not None  # a worker does nothing that it was not given
            busy[0].early[busy[1]] = event
        elif event.kind == "lost":
            self._lose(event)
        else:
            # What the first setup raised every other one would; where workers are ready, one that cannot be is left out.
            self._failed_starts += 1
            if not self._facts or (not self._at and self._failed_starts > self._retries):
                self._failure = event.error
            else:
                self._notice(f"{event.worker} cannot start and is skipped: {event.error}")

    def _lose(self, lost: Event) -> None:
        if lost.worker not in self._at:
            self._failed_starts += 1
            if self._failed_starts > self._retries:
                self._failure = WorkerError(
                    f"No worker starts: {self._failed_starts} in a row ended before they were ready, the last one because {lost.why}. "
                    f"{self._crew.advice}"
                )
            return
        busy = self._at.pop(lost.worker)
        if busy is None:
            self._notice(f"{lost.worker} is gone: {lost.why}. It had no work.")
            return
        work, number = busy
        part = f"Part {number + 1} of {len(work.items)}"
        work.deaths[number] += 1
        if (deaths := work.deaths[number]) > self._retries:
            error = WorkerError(
                f"{part} ended its worker {deaths} times in a row, the last one because {lost.why}. "
                f"Its environment or agent may use too much memory, or end the process. Finished work is saved. {self._crew.advice}"
            )
            work.early[number] = Event("done", lost.worker, error=error)
            return
        heapq.heappush(work.waiting, number)
        self._notice(f"{lost.worker} died: {lost.why}. {part} is repeated.")


class ProcessCrew:
    """Processes of this machine, each with a pipe of its own. One ends when this process does, and is replaced where it dies.

    Args:
        setup: called once in each process, which is a fresh Python: a script that starts workers stands under
            `if __name__ == "__main__"`.
        count: number of processes.
    """

    advice = (
        "A negative code is a signal; -9 often means that memory ran out: lower --num-workers. A script that starts workers needs the "
        'guard if __name__ == "__main__".'
    )

    def __init__(self, setup: Setup, count: int) -> None:
        self._setup, self._count, self._started = setup, count, 0
        self._members: dict[str, tuple[Connection, BaseProcess]] = {}

    def give(self, worker: str, item: Any) -> None:
        """Have a ready worker without an item work on this one."""
        with suppress(OSError):  # it has ended, as `wait` will say
            self._members[worker][0].send(item)

    def wait(self, seconds: float) -> list[Event]:
        """Wait for what happens next, for so long at most. One thread waits at a time."""
        while len(self._members) < self._count:
            self._start()
        names = {pipe: worker for worker, (pipe, _) in self._members.items()}
        return [self._event(names[cast(Connection, pipe)]) for pipe in wait(list(names), seconds)]

    def close(self) -> None:
        """Stop all at once; what they are at is lost."""
        for worker in [*self._members]:
            self._end(worker)

    def _start(self) -> None:
        self._started += 1
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs, self._setup), daemon=True)
        with _deaf_to_interrupts():
            process.start()
        theirs.close()
        self._members[f"Worker {self._started}"] = ours, process

    def _event(self, worker: str) -> Event:
        try:
            kind, result, error = self._members[worker][0].recv()
        except (EOFError, OSError):
            self._members[worker][1].join(WAIT_S)
            return Event("lost", worker, why=f"its process ended with code {self._end(worker)}")
        if kind == "refused":
            self._end(worker)
            self._count = max(1, self._count - 1)  # no other is started in its place, while there are others
        return Event(kind, worker, result, error)

    def _end(self, worker: str) -> int | None:
        """Kill a process where it still runs, and return its exit code."""
        pipe, process = self._members.pop(worker)
        pipe.close()
        process.kill()
        process.join()
        return process.exitcode


@contextmanager
def _deaf_to_interrupts() -> Iterator[None]:
    """A process that is started in here never hears Ctrl-C, not even while it loads; this one hears it afterwards.

    Ctrl-C reaches every process of a terminal; the one that starts the others decides what becomes of them.
    """
    resource_tracker.ensure_running()  # it would come with the first process, and let the signal through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(pipe: Connection, setup: Setup) -> None:
    """Work until the other end is closed, or reset where the process that had it was killed."""
    sys.stdout = sys.stderr  # what foreign code prints is no result of the command
    with suppress(EOFError, OSError):
        made, error = attempt(setup)
        if error is not None:
            pipe.send(("refused", None, error))
            return
        function, facts = made
        pipe.send(("ready", facts, None))
        while True:
            pipe.send(("done", *attempt(partial(function, pipe.recv()))))


def attempt(call: Callable[[], Any]) -> tuple[Any, Exception | None]:
    """The result of a call, or the exception that it raised, in a form that can be sent to another process."""
    try:
        return call(), None
    except Exception as error:
        return None, portable(error)


def portable(error: Exception) -> Exception:
    """Return the exception, or, where it cannot be pickled, a `WorkerError` with its type and message; a bug keeps its traceback as a note."""
    if not isinstance(error, SkillTTRLError):
        error.add_note(f"In a worker:\n{''.join(traceback.format_exception(error))}")
    try:
        copy = pickle.loads(pickle.dumps(error))
        fits = type(copy) is type(error) and str(copy) == str(error)
    except Exception:  # whatever its own code does when it is pickled
        fits = False
    return error if fits else WorkerError(f"{type(error).__name__}: {error}")
