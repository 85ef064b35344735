"""The workers as Ray's actors: placed by resources, replaced where they die, more of them where nodes join."""

from __future__ import annotations

import os
import pickle
import platform
import queue
import re
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from typing import Any

import gymnasium

from skill_ttrl.config import ScaleConfig
from skill_ttrl.config.runtime import AUTO
from skill_ttrl.envs.text_env import close_env
from skill_ttrl.errors import EnvError, WorkerError
from skill_ttrl.workers import RETRIES, Event, Notice, Pool, Setup, Work, attempt

LOOK_S = 2.0
"""Seconds between two looks at the nodes."""
CLOSE_S = 5.0
"""Longest wait for workers to close what they work with, in seconds."""
PATIENCE_S = 30.0
"""Seconds without any worker after which the user is informed."""
THREADS = 64
"""Environments of a host that are called at the same time."""


class Worker:
    """Works in a process of its own. What it prints is in Ray's logs.

    Args:
        folder: The caller's working directory, so that relative paths mean the same where this machine has it.
    """

    def __init__(self, folder: str) -> None:
        self._work: Work | None = None
        with suppress(OSError):
            os.chdir(folder)

    def start(self, setup: Setup) -> tuple[str, Any, Exception | None]:
        """Make what this worker works with; the name of its machine, the facts of the setup, and what it raised."""

        def make() -> Any:
            self._work, facts = setup()
            return facts

        return platform.node(), *attempt(make)

    def work(self, item: Any) -> tuple[Any, Exception | None]:
        """Work on one item; see `attempt`."""
        assert self._work is not None  # a worker is given nothing before it is ready
        return attempt(partial(self._work, item))

    def close(self) -> None:
        """Close what this worker works with, where that can be closed."""
        getattr(self._work, "close", lambda: None)()


class RayCrew:
    """Actors of the Ray cluster that this process is connected to, as workers of a `Pool`.

    Args:
        setup: makes what one works with. It is stored once, and every actor takes it from there.
        settings: how many, and what Ray sets aside for each.
        notice: called with what a user should know.
        most: there are never more; None: any number.
        threads: items that a worker works on at the same time.
    """

    advice = "See the logs of the Ray cluster (/tmp/ray/session_latest/logs on its nodes); often memory has run out."

    def __init__(
        self, setup: Setup, settings: ScaleConfig, notice: Notice, *, most: int | None = None, threads: int = 1
    ) -> None:
        import ray

        self._ray, self._settings, self._notice, self._most = ray, settings, notice, most
        self._setup = ray.put(setup)
        # Not Ray's own restarts: a restarted actor waits for room with its items, while other workers are idle.
        self._make = ray.remote(Worker).options(
            num_cpus=settings.cpus_per_worker,
            num_gpus=settings.gpus_per_worker,
            scheduling_strategy="SPREAD",
            max_restarts=0,
            max_task_retries=0,
            max_concurrency=threads,
        )
        self._actors: dict[str, Any] = {}
        self._started = self._left_out = 0
        self._later: set[str] = set()  # workers that did not come with the first ones
        # Ray calls back in a thread that its own calls wait for: what it says is queued there, and read elsewhere.
        self._events: queue.SimpleQueue[tuple[str, bool, Future[Any]]] = queue.SimpleQueue()
        self._look_at = 0.0
        self._alone_since: float | None = time.monotonic()

    def give(self, worker: str, item: Any) -> None:
        """Have a ready worker without an item work on this one; nothing where it is gone, as `wait` will say."""
        actor = self._actors.get(worker)
        if actor is not None:
            self._call(worker, False, actor.work.remote(item))

    def call(self, worker: str, item: Any) -> Future[tuple[Any, Exception | None]]:
        """Start work on an item in a worker, concurrently with its other items. `wait` does not report it.

        The future raises a `RayError` if the worker is gone.
        """
        found: Future[tuple[Any, Exception | None]] = self._actors[worker].work.remote(item).future()
        return found

    def drop(self, worker: str) -> bool:
        """Forget a worker that is gone, and replace it soon; False if it is forgotten already."""
        actor = self._actors.pop(worker, None)
        if actor is None:
            return False
        self._ray.kill(actor)  # where it can only not be reached, it must not go on
        self._look_at = 0.0
        if not self._actors:
            self._alone_since = time.monotonic()
        return True

    def wait(self, seconds: float) -> Sequence[Event]:
        """Wait for what happens next, for so long at most; start workers where there is room for more. One thread waits at a time."""
        self._staff()
        try:
            found = [self._events.get(timeout=seconds) if seconds else self._events.get_nowait()]
        except queue.Empty:
            return []
        while not self._events.empty():
            found.append(self._events.get())
        return [self._event(*each) for each in found if each[0] in self._actors]

    def close(self) -> None:
        """Stop all workers; what they are at is lost."""
        closing = [actor.close.remote() for actor in self._actors.values()]
        if closing:
            self._ray.wait(closing, num_returns=len(closing), timeout=CLOSE_S)
        for actor in self._actors.values():
            self._ray.kill(actor)
        self._actors.clear()

    def _staff(self) -> None:
        """Start workers where there is room for more."""
        if time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + LOOK_S
            first = self._started == 0
            if not self._actors:
                self._left_out = 0
            wanted = self._settings.workers
            if wanted == AUTO:  # a number is asked for whatever room there is: a cluster that scales adds nodes for it
                wanted = places(self._ray.nodes(), self._settings)
            for _ in range(min(int(wanted), self._most or int(wanted)) - self._left_out - len(self._actors)):
                self._started += 1
                name = f"Worker {self._started}"
                self._actors[name] = actor = self._make.remote(os.getcwd())
                self._call(name, True, actor.start.remote(self._setup))
                if not first:
                    self._later.add(name)
        if self._alone_since is not None and time.monotonic() - self._alone_since > PATIENCE_S:
            free = self._ray.available_resources()
            self._notice(
                f"No worker is ready after {PATIENCE_S:g} s: loading is slow, or other work uses the resources it needs (CPU "
                f"{self._settings.cpus_per_worker:g}, GPU {self._settings.gpus_per_worker:g}; free: CPU {free.get('CPU', 0):g}, GPU "
                f"{free.get('GPU', 0):g})."
            )
            self._alone_since = None

    def _call(self, worker: str, starts: bool, reference: Any) -> None:
        reference.future().add_done_callback(lambda done: self._events.put((worker, starts, done)))

    def _event(self, worker: str, starts: bool, call: Future[Any]) -> Event:
        from ray.exceptions import RayError, RayTaskError

        try:
            *host, result, error = call.result()
        except RayTaskError as raised:  # it could not even be unpacked there
            host, result, error = [""], None, WorkerError(f"{worker}: {type(raised.cause).__name__}: {raised.cause}")
        except RayError as raised:
            self.drop(worker)
            return Event("lost", worker, why=cause_of(raised))
        if not starts:
            return Event("done", worker, result, error)
        if error is not None:
            self._ray.kill(self._actors.pop(worker))
            self._left_out += 1  # no other is started in its place
            return Event("refused", worker, error=error)
        self._alone_since = None
        if worker in self._later:
            self._notice(f"{worker} joins, on {host[0]}.")
        return Event("ready", worker, result)


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


def share(value: Any) -> Any:
    """A handle that many items can name in the place of the value, which is stored once in the cluster; see `fetch`."""
    import ray

    return ray.put(value)


def fetch(handle: Any) -> Any:
    """The value of a handle; a copy each time."""
    import ray

    return ray.get(handle)


# Hosts: workers that hold environments, many of which are called at the same time, each in a thread.


MakeEnv = Callable[[], Any]
"""Makes an environment; a module's own function, or a `partial` of one."""
Call = tuple[str, str, tuple[Any, ...], dict[str, Any]]
"""Name of an environment, its method and arguments: the item of a host. An empty method only makes it."""


class Host:
    """Holds environments, made by `make`; the work of a worker."""

    def __init__(self, make: MakeEnv) -> None:
        self._make = make
        self._envs: dict[str, Any] = {}

    def __call__(self, call: Call) -> Any:
        """Call a method of an environment, which is made first where it is not there yet; after `close` it is no more."""
        name, method, args, kwargs = call
        if method == "close":
            if (env := self._envs.pop(name, None)) is not None:
                close_env(env)
            return None
        if name not in self._envs:
            self._envs[name] = self._make()
        return _as_it_travels(getattr(self._envs[name], method)(*args, **kwargs)) if method else None

    def close(self) -> None:
        """Close all of them."""
        for env in self._envs.values():
            close_env(env)


def make_host(make: MakeEnv) -> tuple[Host, None]:
    """The `Setup` of a host; one environment is made, to see that it can be."""
    close_env(make())
    return Host(make), None


def _as_it_travels(found: Any) -> Any:
    """An answer of an environment, without those entries of its `info` that cannot be pickled, as nothing that is stored has them."""
    if _travels(found) or not (isinstance(found, tuple) and found and isinstance(found[-1], Mapping)):
        return found
    return (*found[:-1], {name: value for name, value in found[-1].items() if _travels(value)})


def _travels(value: Any) -> bool:
    try:
        pickle.dumps(value)
    except Exception:  # whatever its own code does when it is pickled
        return False
    return True


class HostLostError(Exception):
    """The process of a host is gone, with the environments in it; `during_call`: while this one was called."""

    def __init__(self, why: str, during_call: bool) -> None:
        super().__init__(why)
        self.during_call = during_call


class Hosts(Pool):
    """Workers that hold environments; several threads may call them."""

    def __init__(self, crew: RayCrew, notice: Notice) -> None:
        super().__init__(crew, notice)
        self._envs: Counter[str] = Counter()  # of each host
        self._alone = ""  # name of the environment that goes on alone

    def acquire(self) -> str:
        """Name the host with the fewest environments, which has one more from here on; wait until there is any.

        Raises:
            WorkerError: no host starts, or they were stopped.
            Exception: what making the environment raised in the first host.
        """
        self._look()
        while True:
            for _ in self._events(lambda: bool(self._at)):
                pass
            with self._changed:
                if self._at:
                    host = min(self._at, key=lambda name: (self._envs[name], int(name.split()[1])))
                    self._envs[host] += 1
                    return host

    def crowded(self, host: str) -> bool:
        """True if another host has at least two environments fewer: one that begins an episode had better move there."""
        self._look()
        with self._changed:
            return host in self._at and min(self._envs[each] for each in self._at) + 1 < self._envs[host]

    def call(self, host: str, name: str, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of an environment in a host.

        Raises:
            HostLostError: the host is gone.
            Exception: what the method raised.
        """
        from ray.exceptions import RayError, RayTaskError

        try:
            result, error = self._crew.call(host, (name, method, args, kwargs)).result()
        except KeyError:
            raise HostLostError("its worker died", False) from None
        except RayTaskError as raised:  # what it gave could not travel
            raise EnvError(
                f"The environment's {method} cannot be used from another process: {raised.cause!r}"
            ) from None
        except RayError as raised:
            with self._changed:
                if self._crew.drop(host):
                    self._take(Event("lost", host, why=cause_of(raised)))
            raise HostLostError(cause_of(raised), True) from None
        if error is not None:
            raise error
        return result

    def release(self, host: str, name: str) -> None:
        """Close an environment, and have its host one fewer."""
        with self._changed, suppress(KeyError):
            self._crew.call(host, (name, "close", (), {}))
            self._envs[host] -= 1

    @contextmanager
    def alone(self, name: str) -> Iterator[None]:
        """While entered no other environment is; see `leave`."""
        with self._changed:
            self._changed.wait_for(lambda: not self._alone or self._failure is not None)
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

    def _look(self) -> None:
        """Learn which hosts have joined meanwhile."""
        with self._changed:
            looks, self._waits = not self._waits, True
        if looks:
            self._lead(0.0)

    def _lose(self, lost: Event) -> None:
        if lost.worker not in self._at:
            super()._lose(lost)
            return
        del self._at[lost.worker]
        again = "Its environments are recreated on other workers." if self._envs.pop(lost.worker, 0) else "It had none."
        self._notice(f"{lost.worker} died: {lost.why}. {again}")


class HostedEnv(gymnasium.Env[str, str]):
    """Environment that lives in a host.

    Where the host dies, the episode is played again in another one: the same reset, the same actions. An environment that then shows something
    else cannot go on.

    Args:
        hosts: where it may live.
        expensive: as the environment itself says (`TextEnv.expensive`).
    """

    elsewhere = True
    """It computes in another process, so that others may be called meanwhile; see `rollout.rollout`."""

    def __init__(self, hosts: Hosts, expensive: bool = False) -> None:
        self._hosts, self.expensive = hosts, expensive
        self._name, self._host = uuid.uuid4().hex, ""
        self._start: dict[str, Any] = {}
        self._past: list[tuple[str | None, str]] = []
        """Actions of the episode, None for the reset, each with what was seen after it."""
        self._deaths = 0
        self._abandoned = False

    def place(self) -> None:
        """Have it made, in the host with the least to do, before the time of an episode counts."""
        if self._host and self._hosts.crowded(self._host):
            self.close()
        if not self._host:
            self._past, self._deaths = [], 0
            self._call("")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Begin an episode."""
        super().reset(seed=seed)
        self._start, self._past, self._deaths = {"seed": seed, "options": options}, [], 0
        found: tuple[str, dict[str, Any]] = self._call("reset", **self._start)
        self._past = [(None, found[0])]
        return found

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take one step.

        Raises:
            EnvError: there was no `reset` before; its calls end their hosts again and again; or it shows something else when it is played again.
        """
        if not self._past:
            raise EnvError("step was called before reset.")
        found: tuple[str, float, bool, bool, dict[str, Any]] = self._call("step", action)
        self._past.append((action, found[0]))
        return found

    def abandon(self) -> None:
        """Leave it alone where it hangs: a thread of its host."""
        self._abandoned = True
        self._hosts.leave(self._name)

    def close(self) -> None:
        """Give the host's room back; `reset` begins anew."""
        host, self._host = self._host, ""
        if host:
            self._hosts.release(host, self._name)

    def _call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        while True:
            # One whose call may have ended a host goes on where no other such call is, so that no other one is charged with its deaths.
            with self._hosts.alone(self._name) if self._deaths else nullcontext():
                try:
                    if not self._host:
                        self._host = self._hosts.acquire()
                        self._play_again()
                    return self._hosts.call(self._host, self._name, method, *args, **kwargs)
                except HostLostError as lost:
                    self._host = ""
                    if self._abandoned:
                        raise
                    self._deaths += lost.during_call
                    if self._deaths > RETRIES:
                        raise EnvError(
                            f"The worker of this environment has ended {self._deaths} times in one episode, the last time because {lost}. It may use too much memory, or end the process."
                        ) from None

    def _play_again(self) -> None:
        """Bring the environment to where its episode was."""
        for action, seen in self._past:
            if action is None:
                found = self._hosts.call(self._host, self._name, "reset", **self._start)
            else:
                found = self._hosts.call(self._host, self._name, "step", action)
            if found[0] != seen:
                raise EnvError(
                    f"Its worker ended, and when replayed, the environment differs after {action or 'reset'!r:.60}: only environments that repeat with the same seed and actions can continue."
                )
