"""An ordered map over workers that come and go. Knows nothing of Ray: a `Crew` says what happens to the workers.

Results are yielded in the order of the items, each exactly once, to one caller, who writes them down: a worker that dies loses
nothing and doubles nothing, whatever it had done of its item.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from skill_ttrl.errors import ScaleError

WINDOW = 4
"""Items of each worker that may be done, or under way, ahead of the first one that is missing."""

Notice = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Ready:
    """A worker has made what it works with."""

    worker: str
    facts: Any = None
    """Facts that its setup gives; the same for every worker."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The setup raised in a worker, which ends."""

    worker: str
    error: Exception


@dataclass(frozen=True, slots=True)
class Done:
    """A worker has finished its item."""

    worker: str
    result: Any = None
    error: Exception | None = None
    """Exception that the item's own code raised."""


@dataclass(frozen=True, slots=True)
class Lost:
    """A worker is gone, and what it was at with it."""

    worker: str
    why: str


Event = Ready | Refused | Done | Lost


class Crew(Protocol):
    """Workers that come and go."""

    def give(self, worker: str, item: Any) -> None:
        """Have a ready worker without an item work on this one."""
        ...

    def wait(self) -> Sequence[Event]:
        """Wait for what happens next, for a moment at most; start workers where there is room for more."""
        ...

    def close(self) -> None:
        """Stop all workers; what they are at is lost."""
        ...


@dataclass
class _Work:
    """The items of one map."""

    items: Sequence[Any]
    waiting: list[int]
    """Numbers of the items that no worker has, as a heap: the first ones come first, also after a worker has died."""
    early: dict[int, Done] = field(default_factory=dict)
    deaths: Counter[int] = field(default_factory=Counter)


class Pool:
    """Workers, and the items that they work on, one after another.

    Args:
        crew: the workers.
        retries: times that an item is given to another worker because its worker has died.
        notice: called with what a user should know.
    """

    def __init__(self, crew: Crew, retries: int, notice: Notice) -> None:
        self._crew, self._retries, self._notice = crew, retries, notice
        self._at: dict[str, int | None] = {}  # ready workers, and the number of the item that each is at
        self._facts: list[Any] = []
        self._failed_starts = 0

    def facts(self) -> Any:
        """Facts that the setup gives, as soon as one worker is ready.

        Raises:
            ScaleError: workers die before they are ready.
            Exception: whatever the setup raised.
        """
        while not self._facts:
            self._advance(_Work((), []))
        return self._facts[0]

    def map(self, items: Sequence[Any], on_done: Callable[[int, Any], None] | None = None) -> Generator[Any]:
        """Yield the result of each item, in the order of the items.

        Args:
            items: inputs.
            on_done: called with number and result of an item as soon as it is done, in any order.

        Raises:
            ScaleError: an item's workers die, more often than is retried.
            Exception: whatever the work on an item raised, after the results of the items before it.
        """
        work = _Work(items, list(range(len(items))))
        for number in range(len(items)):
            self._give(work, number)
            while number not in work.early:
                self._advance(work, on_done)
                self._give(work, number)
            done = work.early.pop(number)
            if done.error is not None:
                raise done.error
            yield done.result

    def close(self) -> None:
        """Stop all workers."""
        self._crew.close()

    def _give(self, work: _Work, first: int) -> None:
        """Give idle workers the next items, not too far ahead of the first one that is missing."""
        limit = first + WINDOW * len(self._at)
        for worker, busy in self._at.items():
            if busy is None and work.waiting and work.waiting[0] < limit:
                number = heapq.heappop(work.waiting)
                self._at[worker] = number
                self._crew.give(worker, work.items[number])

    def _advance(self, work: _Work, on_done: Callable[[int, Any], None] | None = None) -> None:
        for event in self._crew.wait():
            match event:
                case Ready():
                    self._at[event.worker], self._failed_starts = None, 0
                    self._facts.append(event.facts)
                case Refused():
                    self._refuse(event)
                case Done():
                    number, self._at[event.worker] = self._at[event.worker], None
                    assert number is not None  # a worker does nothing that it was not given
                    work.early[number] = event
                    if on_done is not None and event.error is None:
                        on_done(number, event.result)
                case Lost():
                    self._lose(event, work)

    def _refuse(self, refused: Refused) -> None:
        """Raise what the first setup raised, which every other one would; where workers are ready, one that cannot be is left out."""
        self._failed_starts += 1
        if not self._facts or (not self._at and self._failed_starts > self._retries):
            raise refused.error
        self._notice(f"{refused.worker} cannot start, and is left out: {refused.error}")

    def _lose(self, lost: Lost, work: _Work) -> None:
        if lost.worker not in self._at:
            self._failed_starts += 1
            if self._failed_starts > self._retries:
                raise ScaleError(
                    f"No worker starts: {self._failed_starts} in a row ended before they were ready, the last one because {lost.why}. "
                    "See the logs of the Ray cluster (/tmp/ray/session_latest/logs on its nodes); often memory has run out."
                )
            return
        number = self._at.pop(lost.worker)
        if number is None:
            self._notice(f"{lost.worker} is gone: {lost.why}. It was at nothing.")
            return
        work.deaths[number] += 1
        if (deaths := work.deaths[number]) > self._retries:
            raise ScaleError(
                f"Part {number + 1} of {len(work.items)} ended its worker {deaths} times in a row, the last one because {lost.why}. "
                "Its environment or agent may take too much memory, or end the process. What is finished is kept; to go on trying: "
                "scale.max_retries."
            )
        heapq.heappush(work.waiting, number)
        self._notice(f"{lost.worker} is gone: {lost.why}. Part {number + 1} of {len(work.items)} is done again.")
