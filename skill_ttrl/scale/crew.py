"""The workers as Ray's actors: placed by resources, replaced where they die, more of them where nodes join."""

from __future__ import annotations

import os
import queue
import re
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

from skill_ttrl.config import ScaleConfig
from skill_ttrl.config.scale import AUTO
from skill_ttrl.errors import ScaleError
from skill_ttrl.scale.pool import Done, Event, Lost, Notice, Ready, Refused
from skill_ttrl.scale.worker import Answer, Setup, Worker

LOOK_S = 2.0
"""Seconds between two looks at the nodes."""
WAIT_S = 1.0
"""Longest wait for an event, in seconds."""
CLOSE_S = 5.0
"""Longest wait for workers to close what they work with, in seconds."""
MOST_PRINTED = 200
"""Lines that workers print and that are shown; further ones are in Ray's logs alone."""
PATIENCE_S = 30.0
"""Seconds without any worker after which the user is informed."""


class RayCrew:
    """Actors of a Ray cluster that this process is connected to.

    Args:
        setup: makes what a worker works with. It is stored once, and every worker takes it from there.
        settings: how many workers, and what Ray sets aside for each.
        most: number of items; there are never more workers.
        notice: called with what a user should know, such as what the workers print.
    """

    def __init__(self, setup: Setup, settings: ScaleConfig, most: int, notice: Notice) -> None:
        import ray

        self._ray, self._settings, self._most, self._notice = ray, settings, max(1, most), notice
        self._setup = ray.put(setup)
        self._make = actor_class(Worker, settings)
        self._actors: dict[str, Any] = {}
        self._started = self._left_out = 0
        self._later: set[str] = set()  # workers that did not come with the first ones
        self._events: queue.SimpleQueue[tuple[str, bool, Future[Any]]] = queue.SimpleQueue()
        self._printed: set[str] = set()
        self._look_at = 0.0
        self._alone_since: float | None = time.monotonic()

    def give(self, worker: str, item: Any) -> None:
        """See `pool.Crew`."""
        actor = self._actors.get(worker)
        if actor is not None:
            self._call(worker, False, actor.work.remote(item))

    def wait(self) -> Sequence[Event]:
        """See `pool.Crew`. Not `ray.wait`, which swallows what a signal's handler raises."""
        self._staff()
        try:
            found = [self._events.get(timeout=WAIT_S)]
        except queue.Empty:
            return []
        while not self._events.empty():
            found.append(self._events.get())
        return [self._event(*each) for each in found if each[0] in self._actors]

    def close(self) -> None:
        """See `pool.Crew`."""
        closing = [actor.close.remote() for actor in self._actors.values()]
        if closing:
            self._ray.wait(closing, num_returns=len(closing), timeout=CLOSE_S)
        for actor in self._actors.values():
            self._ray.kill(actor)
        self._actors.clear()

    def _call(self, worker: str, starts: bool, reference: Any) -> None:
        reference.future().add_done_callback(lambda done: self._events.put((worker, starts, done)))

    def _staff(self) -> None:
        """Start workers where there is room for more."""
        if time.monotonic() < self._look_at:
            return
        later, wanted = self._started > 0, self._settings.workers
        if wanted == AUTO:  # a number is asked for whatever room there is: a cluster that scales adds nodes for it
            wanted = places(self._ray.nodes(), self._settings)
        if not self._actors:
            self._left_out = 0
        for _ in range(min(self._most, int(wanted)) - self._left_out - len(self._actors)):
            self._started += 1
            name = f"Worker {self._started}"
            if later:
                self._later.add(name)
            self._actors[name] = actor = self._make.remote(os.getcwd())
            self._call(name, True, actor.start.remote(self._setup))
        if self._alone_since is not None and time.monotonic() - self._alone_since > PATIENCE_S:
            free = self._ray.available_resources()
            self._notice(
                f"No worker is ready after {PATIENCE_S:g} s: it loads for long, or other work holds what it needs (CPU "
                f"{self._settings.cpus_per_worker:g}, GPU {self._settings.gpus_per_worker:g}; free: CPU {free.get('CPU', 0):g}, GPU "
                f"{free.get('GPU', 0):g})."
            )
            self._alone_since = None
        self._look_at = time.monotonic() + LOOK_S

    def _event(self, worker: str, starts: bool, call: Future[Any]) -> Event:
        from ray.exceptions import RayError, RayTaskError

        refused = partial(Refused, worker) if starts else partial(Done, worker, None)
        try:
            found = call.result()
        except RayTaskError as error:  # it could not even be unpacked there
            if starts:
                self._leave_out(worker)
            return refused(ScaleError(f"{worker}: {type(error.cause).__name__}: {error.cause}"))
        except RayError as error:
            self._ray.kill(self._actors.pop(worker))  # where it can only not be reached, it must not go on
            self._look_at = 0.0
            if not self._actors:
                self._alone_since = time.monotonic()
            return Lost(worker, cause_of(error))
        host, answer = found if starts else ("", found)
        self._hand_on(worker, answer)
        if answer.error is not None and starts:
            self._leave_out(worker)
        if answer.error is not None:
            return refused(answer.error)
        if not starts:
            return Done(worker, answer.result)
        self._alone_since = None
        if worker in self._later:
            self._notice(f"{worker} joins, on {host}.")
        return Ready(worker, answer.result)

    def _leave_out(self, worker: str) -> None:
        """End a worker that cannot start, and start no other in its place."""
        self._ray.kill(self._actors.pop(worker))
        self._left_out += 1

    def _hand_on(self, worker: str, answer: Answer) -> None:
        """Report each line that workers print, once."""
        for line in answer.printed:
            if line not in self._printed and len(self._printed) < MOST_PRINTED:
                self._printed.add(line)
                self._notice(f"{worker}: {line}")


def actor_class(kind: type, settings: ScaleConfig, **more: Any) -> Any:
    """Make Ray's class of actors that are placed as workers; `more` are further options of Ray."""
    import ray

    # Not Ray's own restarts: a restarted actor waits for room with its items, while other workers are idle.
    return ray.remote(kind).options(
        num_cpus=settings.cpus_per_worker,
        num_gpus=settings.gpus_per_worker,
        scheduling_strategy="SPREAD",
        max_restarts=0,
        max_task_retries=0,
        **more,
    )


def places(nodes: Sequence[Mapping[str, Any]], settings: ScaleConfig) -> int:
    """Workers that a cluster's nodes have room for, where nothing else runs.

    Args:
        nodes: as `ray.nodes()` gives them: `Alive`, and `Resources` by name.
        settings: what Ray sets aside for each.
    """
    needs = {"CPU": settings.cpus_per_worker, "GPU": settings.gpus_per_worker}
    return sum(
        min(int(node["Resources"].get(name, 0.0) / need + 1e-9) for name, need in needs.items() if need)
        for node in nodes
        if node["Alive"]
    )


def cause_of(error: Exception) -> str:
    """Why a worker is gone, in a few words, out of Ray's long ones."""
    found = re.search(r"because (.+?)\.(?:\s|$)", str(error))
    return found.group(1) if found else f"{type(error).__name__}: {str(error).splitlines()[0]}"
