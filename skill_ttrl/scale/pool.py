"""An ordered map over workers that come and go. Knows nothing of Ray: its crew (`RayCrew`) says what happens to the workers.

Results are yielded in the order of the items, each exactly once, to one caller, who writes them down: a worker that dies loses
nothing and doubles nothing, whatever it had done of its item. Several threads may map at the same time: the items of whoever came first go first.
"""

from __future__ import annotations

import heapq
import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from skill_ttrl.errors import ScaleError

WINDOW = 4
"""Items of each worker that may be done, or under way, ahead of the first one that is missing."""
FOLLOW_S = 1.0
"""Longest wait of a thread for another one that waits for the crew, in seconds."""

Notice = Callable[[str], None]


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
    news: list[int] = field(default_factory=list)
    """Numbers of the items that are done and not reported yet."""
    deaths: Counter[int] = field(default_factory=Counter)

    def has_next(self, ahead: int) -> bool:
        """True if there is an item for a worker, no more than so many ahead of the first one that is missing."""
        return bool(self.waiting) and self.waiting[0] < self.first + ahead


class Pool:
    """Workers, and the items that they work on, one after another.

    Args:
        crew: the workers, a `crew.RayCrew` or what has its `give`, `wait` and `close`.
        retries: times that an item is given to another worker because its worker has died.
        notice: called with what a user should know.
    """

    def __init__(self, crew: Any, retries: int, notice: Notice) -> None:
        self._crew, self._retries, self._notice = crew, retries, notice
        self._at: dict[str, tuple[_Work, int] | None] = {}  # ready workers, and the item that each is at
        self._facts: list[Any] = []
        self._failed_starts = 0
        self._maps: list[_Work] = []
        self._failure: Exception | None = None
        self._changed = threading.Condition()
        self._waits = False  # a thread waits for the crew; the others wait for it

    def facts(self) -> Any:
        """Facts that the setup gives, as soon as one worker is ready.

        Raises:
            ScaleError: workers die before they are ready.
            Exception: whatever the setup raised.
        """
        for _ in self._events(lambda: bool(self._facts)):
            pass
        return self._facts[0]

    def map(
        self,
        items: Sequence[Any],
        on_done: Callable[[int, Any], None] | None = None,
        stop: Callable[[], None] = lambda: None,
        prepare: Callable[[Any], Any] = lambda item: item,
    ) -> Generator[Any]:
        """Yield the result of each item, in the order of the items.

        Args:
            items: inputs.
            on_done: called with number and result of an item as soon as it is done, in any order.
            prepare: makes of an item what a worker is given, at the moment when it is.
            stop: called again and again while a result is waited for; what it raises ends the map.

        Raises:
            ScaleError: an item's workers die, more often than is retried; or the pool is closed.
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
                    self._report(work, on_done)
                self._report(work, on_done)
                done = work.early.pop(number)
                if done.error is not None:
                    raise done.error
                yield done.result
        finally:
            with self._changed:
                self._maps.remove(work)

    def close(self) -> None:
        """Stop all workers; a map in another thread ends with a `ScaleError`."""
        with self._changed:
            self._failure = self._failure or ScaleError("The workers were stopped.")
            self._changed.notify_all()
        self._crew.close()

    def _report(self, work: _Work, on_done: Callable[[int, Any], None] | None) -> None:
        with self._changed:
            news, work.news = work.news, []
            done = [(number, work.early[number]) for number in news]
        for number, event in done:
            if on_done is not None and event.error is None:
                on_done(number, event.result)

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
                    self._changed.wait(FOLLOW_S)
                else:
                    self._waits = True
            if not follows:
                self._lead()
            yield

    def _lead(self) -> None:
        """Wait for the crew, in the place of all threads that map."""
        events: Sequence[Event] = ()
        try:
            events = self._crew.wait()
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
            _end(*busy, event)
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
                self._failure = none_starts(self._failed_starts, lost.why)
            return
        busy = self._at.pop(lost.worker)
        if busy is None:
            self._notice(f"{lost.worker} is gone: {lost.why}. It had no work.")
            return
        work, number = busy
        part = f"Part {number + 1} of {len(work.items)}"
        work.deaths[number] += 1
        if (deaths := work.deaths[number]) > self._retries:
            error = ScaleError(
                f"{part} ended its worker {deaths} times in a row, the last one because {lost.why}. "
                "Its environment or agent may use too much memory, or end the process. Finished work is saved. To retry more often: scale.max_retries."
            )
            _end(work, number, Event("done", lost.worker, error=error))
            return
        heapq.heappush(work.waiting, number)
        self._notice(f"{lost.worker} died: {lost.why}. {part} is repeated.")


def none_starts(count: int, why: str) -> ScaleError:
    """The error where so many workers in a row ended before they were ready."""
    return ScaleError(
        f"No worker starts: {count} in a row ended before they were ready, the last one because {why}. See the logs of the Ray cluster "
        "(/tmp/ray/session_latest/logs on its nodes); often memory has run out."
    )


def _end(work: _Work, number: int, done: Event) -> None:
    work.early[number] = done
    work.news.append(number)
