"""The same work on many things, in several processes, with the results in order.

Not `concurrent.futures`: its processes stay for ever when the one that started them is killed, and one that is killed
itself takes all results along. Here each process has a pipe of its own, and ends when its other end does.
"""

from __future__ import annotations

import multiprocessing
import signal
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Generic, TypeVar, cast

from skill_ttrl.errors import EnvError

Item = TypeVar("Item")
Result = TypeVar("Result")

_AHEAD = 2  # things a process has been given: while its result travels, it has the next one
_WINDOW = 64  # results of each process that may wait for an earlier one


def work(make: Callable[[], Callable[[Item], Result]], items: Sequence[Item], jobs: int) -> Generator[Result]:
    """Yield the result of each item, in the order of the items.

    Args:
        make: called once in each process; gives the function that works. A module's own, or a `partial` of one.
        items: inputs; every process receives all of them.
        jobs: processes, at least 1; 1 works in this one. More start a fresh Python each, so that a script that calls this
            stands under `if __name__ == "__main__"`.

    Raises:
        EnvError: a process ended before its work was done.
        Exception: whatever `make` or its function raised in its process.
    """
    if jobs <= 1:
        yield from map(make(), items)
        return
    crew = _Crew(make, items, min(jobs, max(1, len(items))))
    try:
        yield from crew.results()
    finally:
        crew.end()


class _Crew(Generic[Item, Result]):
    """Processes at work."""

    def __init__(self, make: Callable[[], Callable[[Item], Result]], items: Sequence[Item], jobs: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._total = len(items)
        self._next = 0
        self._members: dict[Connection, BaseProcess] = {}
        self._given: dict[Connection, deque[int]] = {}
        try:
            for _ in range(jobs):
                ours, theirs = context.Pipe()
                process = context.Process(target=_serve, args=(theirs, make, items), daemon=True)
                with _deaf_to_interrupts():
                    process.start()
                theirs.close()
                self._members[ours], self._given[ours] = process, deque()
        except BaseException:
            self.end()
            raise

    def results(self) -> Iterator[Result]:
        """In order, and what was raised in its place; a result that comes early waits, and not too many do."""
        early: dict[int, tuple[bool, Any]] = {}
        for number in range(self._total):
            while number not in early:
                self._give(number + _WINDOW * len(self._members))
                for pipe in wait(list(self._members)):
                    place, found = self._take(cast(Connection, pipe))
                    early[place] = found
            fine, result = early.pop(number)
            if not fine:
                raise result
            yield result

    def end(self) -> None:
        """Stop all at once; what they are at is lost."""
        for pipe in self._members:
            pipe.close()
        for process in self._members.values():
            process.kill()
            process.join()
        self._members.clear()

    def _give(self, limit: int) -> None:
        for pipe, given in self._given.items():
            while len(given) < _AHEAD and self._next < min(limit, self._total):
                given.append(self._next)
                try:
                    pipe.send(self._next)
                except OSError:  # it has ended; `_take` says so
                    return
                self._next += 1

    def _take(self, pipe: Connection) -> tuple[int, tuple[bool, Any]]:
        try:
            found = pipe.recv()
        except (EOFError, OSError):
            process = self._members[pipe]
            process.join()
            raise EnvError(
                f"A worker process ended before it was done (exit code {process.exitcode}). A negative code is a signal; -9 often means "
                "that memory ran out: lower --num-workers. A script that starts workers needs the guard "
                'if __name__ == "__main__".'
            ) from None
        if isinstance(found, Exception):
            raise found
        return self._given[pipe].popleft(), found


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


def _serve(pipe: Connection, make: Callable[[], Callable[[Any], Any]], items: Sequence[Any]) -> None:
    """Work until the other end is closed."""
    sys.stdout = sys.stderr  # what foreign code prints is no result of the command
    try:
        function = make()
    except Exception as error:
        pipe.send(error)  # not of one item: this process is no use
        return
    while True:
        try:
            item = items[pipe.recv()]
        except (EOFError, OSError):  # closed, or reset where the other end was killed
            return
        try:
            answer = (True, function(item))
        except Exception as error:  # raised again where somebody can say it
            answer = (False, error)
        try:
            pipe.send(answer)
        except OSError:
            return  # nobody waits for us any more
