"""The environments that episodes are played in, and the threads in which they may be played side by side.

An environment is foreign code: it may be slow, and it may hang. What hangs in a thread cannot be ended; it can be left alone, so that
the episode, the run and the process end without it.
"""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar, cast

import gymnasium

from skill_ttrl.envs.text_env import close_env

T = TypeVar("T")
TextEnvironment = gymnasium.Env[str, str]


class EnvTimeoutError(Exception):
    """An environment's answer did not come in time. `still_running`: it may still come, and the environment cannot be used."""

    def __init__(self, still_running: bool) -> None:
        super().__init__("an environment did not answer in time")
        self.still_running = still_running


class EnvPool:
    """Environments that are made once, as many as episodes run side by side, and used again for every episode."""

    def __init__(self, make: Callable[[], TextEnvironment]) -> None:
        self._make = make
        self._envs: list[TextEnvironment] = []
        self._lent = set[int]()
        self._lock = threading.Lock()

    def acquire(self, count: int) -> list[TextEnvironment]:
        """`count` environments to look at, ready to be reset."""
        with self._lock:
            return self._first_free(count)

    @contextmanager
    def lend(self, count: int) -> Iterator[list[TextEnvironment]]:
        """`count` environments, ready to be reset, that no other thread is lent meanwhile."""
        with self._lock:
            taken = self._first_free(count)
            self._lent |= set(map(id, taken))
        try:
            yield taken
        finally:
            with self._lock:
                self._lent -= set(map(id, taken))

    def discard(self, env: TextEnvironment) -> None:
        """Forget an environment that hangs: it is used no more, nor closed, and another is made when one is needed.

        `abandon` of the environment is called, where it has one.
        """
        with self._lock:
            self._envs = [each for each in self._envs if each is not env]
        getattr(env.unwrapped, "abandon", lambda: None)()

    def replace(self, env: TextEnvironment) -> None:
        """Close an environment that failed, if it was not discarded; another is made when one is needed."""
        with self._lock:
            known = any(each is env for each in self._envs)
            self._envs = [each for each in self._envs if each is not env]
        if known:
            close_env(env)

    def _first_free(self, count: int) -> list[TextEnvironment]:
        free = [env for env in self._envs if id(env) not in self._lent]
        while len(free) < count:
            self._envs.append(self._make())  # one by one: those that were made are closed where the next one fails
            free.append(self._envs[-1])
        return free[:count]

    def close(self) -> None:
        """Close them all; see `envs.text_env.close_env`."""
        for env in self._envs:
            close_env(env)
        self._envs.clear()


@dataclass
class _Job:
    work: Callable[[], Any]
    answer: Future[Any]
    left_alone: bool = False
    """Nobody waits for it any more, and its thread has been counted out."""


class EnvThreads:
    """Threads that call environments for one event loop.

    They are no executor's: those are waited for when the process ends, which with one that hangs it would never do. At `most` so
    many calls run at the same time; those that hang do not count.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()  # between "it hangs" and "it has answered"
        self._threads = self._open = 0

    async def call(self, work: Callable[[], T], seconds: float | None = None) -> T:
        """Call `work` in one of the threads, and return or raise as it does. Wait for so many seconds; None: any time.

        Raises:
            EnvTimeoutError: it has not returned by then.
        """
        job = _Job(partial(contextvars.copy_context().run, work), Future())
        self._open += 1
        if self._open > self._threads < self._most:
            self._threads += 1
            threading.Thread(target=self._live, name="environment", daemon=True).start()
        self._jobs.put(job)
        try:
            async with asyncio.timeout(seconds) as clock:
                return cast(T, await asyncio.wrap_future(job.answer))
        except TimeoutError:
            if not clock.expired():  # it is the environment's own
                raise
            with self._lock:
                still_running = not job.answer.cancel() and not job.answer.done()
                job.left_alone = still_running
            self._threads -= still_running
            raise EnvTimeoutError(still_running) from None
        finally:
            self._open -= 1

    def close(self) -> None:
        """End the threads that do not hang."""
        for _ in range(self._threads):
            self._jobs.put(None)
        self._threads = 0

    def _live(self) -> None:
        while (job := self._jobs.get()) is not None:
            if not job.answer.set_running_or_notify_cancel():
                continue  # it was out of time before its turn came
            error, found = None, None
            try:
                found = job.work()
            except BaseException as raised:  # passed on to the caller, also a signal or an exit
                error = raised
            with self._lock:
                if error is None:
                    job.answer.set_result(found)
                else:
                    job.answer.set_exception(error)
                if job.left_alone:
                    return
