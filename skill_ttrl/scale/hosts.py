"""Hosts as Ray's actors: processes that hold environments, placed by resources, more of them where nodes join."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from skill_ttrl.config import ScaleConfig
from skill_ttrl.config.scale import AUTO
from skill_ttrl.errors import EnvError, ScaleError
from skill_ttrl.scale.crew import CLOSE_S, LOOK_S, PATIENCE_S, actor_class, cause_of, places
from skill_ttrl.scale.host import Host, MakeEnv
from skill_ttrl.scale.pool import Notice, none_starts
from skill_ttrl.scale.worker import Answer

POLL_S = 0.1
"""Seconds between two looks for a host that is ready."""


THREADS = 64
"""Environments of a host that are called at the same time."""


class HostLostError(Exception):
    """The process of a host is gone, with the environments in it; `during_call`: while this one was called."""

    def __init__(self, why: str, during_call: bool) -> None:
        super().__init__(why)
        self.during_call = during_call


class Hosts:
    """Actors of a Ray cluster that this process is connected to; several threads may call them.

    Args:
        make: makes an environment in a host.
        settings: how many hosts, and what Ray sets aside for each.
        notice: called with what becomes of hosts.
    """

    def __init__(self, make: MakeEnv, settings: ScaleConfig, notice: Notice) -> None:
        import ray

        self._ray, self._make, self._settings, self._notice = ray, make, settings, notice
        self._actor = actor_class(Host, settings, max_concurrency=THREADS)
        self._actors: dict[str, Any] = {}
        self._ready: Counter[str] = Counter()  # hosts that have started, with the number of their environments
        # Ray calls back in a thread that its own calls wait for: what it says is queued there, and read elsewhere.
        self._news: queue.SimpleQueue[tuple[str, Future[tuple[str, Answer]]]] = queue.SimpleQueue()
        self._started = self._left_out = 0
        self._refused: Exception | None = None
        self._failed_starts, self._why = 0, ""
        self._alone = ""  # name of the environment that goes on alone
        self._closing: list[Any] = []
        self._changed = threading.Condition(threading.RLock())
        self._look_at = 0.0
        self._closed = False

    def acquire(self) -> str:
        """Name the host with the fewest environments, which has one more from here on; wait until there is any.

        Raises:
            ScaleError: the hosts were stopped.
            Exception: what making the environment raised in the first host.
        """
        since, said = time.monotonic(), False
        with self._changed:
            while True:
                if self._closed:
                    raise ScaleError("The workers were stopped.")
                self._staff()
                if self._ready:
                    host = min(self._ready, key=lambda name: (self._ready[name], int(name.split()[1])))
                    self._ready[host] += 1
                    return host
                if self._refused is not None and not self._actors:
                    raise self._refused
                if self._gives_up and not self._actors:
                    raise none_starts(self._failed_starts, self._why)
                if not said and time.monotonic() - since > PATIENCE_S:
                    said = True
                    self._notice(
                        f"No worker is ready after {PATIENCE_S:g} s: it loads for long, or other work holds what it needs."
                    )
                self._changed.wait(POLL_S)

    def crowded(self, host: str) -> bool:
        """True if another host has at least two environments fewer: one that begins an episode had better move there."""
        with self._changed:
            self._staff()
            return host in self._ready and min(self._ready.values()) + 1 < self._ready[host]

    def call(self, host: str, name: str, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of an environment in a host.

        Raises:
            HostLostError: the host is gone.
            Exception: what the method raised.
        """
        from ray.exceptions import RayError, RayTaskError

        actor = self._actors.get(host)
        if actor is None:
            raise HostLostError("its worker is gone", False)
        try:
            found: Answer = actor.call.remote(name, method, *args, **kwargs).future().result()
        except RayTaskError as error:  # what it gave could not travel
            raise EnvError(f"The environment's {method} cannot be used from another process: {error.cause!r}") from None
        except RayError as error:
            self._lose(host, cause_of(error))
            raise HostLostError(cause_of(error), True) from None
        if found.error is not None:
            raise found.error
        return found.result

    def release(self, host: str, name: str) -> None:
        """Close an environment, and have its host one fewer."""
        with self._changed:
            actor = self._actors.get(host)
            if actor is not None:
                self._ready[host] -= 1
                self._closing.append(actor.close.remote(name))

    @contextmanager
    def alone(self, name: str) -> Iterator[None]:
        """While entered no other environment is; see `leave`."""
        with self._changed:
            while self._alone and not self._closed:
                self._changed.wait(POLL_S)
            self._alone = name
        try:
            yield
        finally:
            self.leave(name)

    def leave(self, name: str) -> None:
        """Have an environment go on alone no more, where it does."""
        with self._changed:
            if self._alone == name:
                self._alone = ""
                self._changed.notify_all()

    def close(self) -> None:
        """Stop all hosts, once the environments that were released have closed."""
        if self._closing:
            self._ray.wait(self._closing, num_returns=len(self._closing), timeout=CLOSE_S)
        with self._changed:
            self._closed = True
            for actor in self._actors.values():
                self._ray.kill(actor)
            self._actors.clear()
            self._changed.notify_all()

    def _staff(self) -> None:
        """Start hosts where there is room for more, and learn which have started."""
        self._read_news()
        if time.monotonic() < self._look_at or self._gives_up:
            return
        wanted = self._settings.workers
        if wanted == AUTO:
            wanted = places(self._ray.nodes(), self._settings)
        for _ in range(int(wanted) - self._left_out - len(self._actors)):
            self._started += 1
            name = f"Worker {self._started}"
            self._actors[name] = actor = self._actor.remote(os.getcwd())
            started = actor.start.remote(self._make).future()
            started.add_done_callback(lambda done, name=name: self._news.put((name, done)))
        self._look_at = time.monotonic() + LOOK_S

    def _read_news(self) -> None:
        while not self._news.empty():
            host, start = self._news.get()
            try:
                _, found = start.result()
            except Exception as error:  # whatever Ray has to say of a host that could not start
                self._failed_starts, self._why = self._failed_starts + 1, cause_of(error)
                self._lose(host, self._why)
                if self._gives_up:
                    self._notice(
                        f"No more workers are started: {self._failed_starts} in a row ended before they were ready."
                    )
                continue
            if found.error is None:
                self._ready[host], self._failed_starts = 0, 0
                self._changed.notify_all()
            else:
                self._refused = found.error
                self._left_out += 1
                self._ray.kill(self._actors.pop(host))
                if self._ready:
                    self._notice(f"{host} cannot start, and is left out: {found.error}")

    @property
    def _gives_up(self) -> bool:
        """True where hosts do not start, one after the other."""
        return self._failed_starts > self._settings.max_retries

    def _lose(self, host: str, why: str) -> None:
        with self._changed:
            actor = self._actors.pop(host, None)
            held = self._ready.pop(host, None)
            self._look_at = 0.0
            self._changed.notify_all()
        if actor is not None and not self._closed:
            self._ray.kill(actor)  # where it can only not be reached, it must not go on
            again = "Its environments are made again elsewhere." if held else "It held nothing."
            self._notice(f"{host} is gone: {why}. {again}")
