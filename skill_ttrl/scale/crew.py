"""The workers as Ray's actors: placed by resources, replaced where they die, more of them where nodes join."""

from __future__ import annotations

import io
import os
import pickle
import platform
import queue
import re
import threading
import time
import traceback
import uuid
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import gymnasium

from skill_ttrl.config import ScaleConfig
from skill_ttrl.config.scale import AUTO
from skill_ttrl.envs.contract import close_env
from skill_ttrl.errors import EnvError, ScaleError, SkillTTRLError
from skill_ttrl.scale.pool import Event, Notice, none_starts

Work = Callable[[Any], Any]
Setup = Callable[[], tuple[Work, Any]]
"""Makes the function that works on an item, and what the caller should know of it."""
MOST_LINES = 20
"""Printed lines of one item that are handed on."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Result or exception of a call, and the lines that were printed meanwhile."""

    result: Any = None
    error: Exception | None = None
    printed: tuple[str, ...] = ()


def _enter(folder: str) -> None:
    """Go to the working directory of the caller where this machine has it, so that relative paths mean the same."""
    with suppress(OSError):
        os.chdir(folder)


class Worker:
    """Works in a process of its own; `folder` is the caller's (`_enter`)."""

    def __init__(self, folder: str) -> None:
        self._work: Work | None = None
        _enter(folder)

    def start(self, setup: Setup) -> tuple[str, Answer]:
        """Make what this worker works with; the name of its machine, and what the setup says."""

        def make() -> Any:
            self._work, facts = setup()
            return facts

        return platform.node(), answer(make)

    def close(self) -> None:
        """Close what this worker works with, where that can be closed."""
        close = getattr(self._work, "close", None)
        self._work = None
        if close is not None:
            close()

    def work(self, item: Any) -> Answer:
        """Work on one item."""
        assert self._work is not None  # a worker is given nothing before it is ready
        return answer(lambda: self._work(item))  # type: ignore[misc]


def answer(call: Callable[[], Any]) -> Answer:
    """Call it; what it prints is caught, and an exception is an answer that can travel."""
    text = io.StringIO()
    with redirect_stdout(text), redirect_stderr(text):
        try:
            result, error = call(), None
        except Exception as raised:
            result, error = None, portable(raised)
    lines = [line for line in text.getvalue().splitlines() if line.strip()]
    if len(lines) > MOST_LINES:
        lines = [*lines[:MOST_LINES], f"… and {len(lines) - MOST_LINES} more lines"]
    return Answer(result, error, tuple(lines))


def portable(error: Exception) -> Exception:
    """Return the exception, or, where it cannot be pickled, a `ScaleError` with its type and message; a bug keeps its traceback as a note."""
    if not isinstance(error, SkillTTRLError):
        error.add_note(f"In a worker:\n{''.join(traceback.format_exception(error))}")
    try:
        copy = pickle.loads(pickle.dumps(error))
        fits = type(copy) is type(error) and str(copy) == str(error)
    except Exception:  # whatever its own code does when it is pickled
        fits = False
    return error if fits else ScaleError(f"{type(error).__name__}: {error}")


# One host: holds environments, which are called at the same time, each in a thread. Runs in a process of Ray; imports no ray.


MakeEnv = Callable[[], Any]
"""Makes an environment; a module's own function, or a `partial` of one."""


class Host:
    """Holds environments in a process of its own; `folder` is the caller's (`_enter`). What they print is in Ray's logs."""

    def __init__(self, folder: str) -> None:
        self._envs: dict[str, Any] = {}
        self._make: MakeEnv | None = None
        _enter(folder)

    def start(self, make: MakeEnv) -> tuple[str, Answer]:
        """Make one environment, to see that it can be; the name of this machine."""

        def try_it() -> None:
            self._make = make
            close_env(make())

        return platform.node(), _answer(try_it)

    def call(self, name: str, method: str, *args: Any, **kwargs: Any) -> Answer:
        """Call a method of an environment, which is made first where it is not there yet; with an empty `method` it is made alone."""

        def do() -> Any:
            if name not in self._envs:
                assert self._make is not None  # nothing is called before it has started
                self._envs[name] = self._make()
            return _as_it_travels(getattr(self._envs[name], method)(*args, **kwargs)) if method else None

        return _answer(do)

    def close(self, name: str) -> None:
        """Close an environment, where there is one of this name."""
        env = self._envs.pop(name, None)
        if env is not None:
            close_env(env)


def _answer(call: Callable[[], Any]) -> Answer:
    try:
        return Answer(call())
    except Exception as raised:
        return Answer(error=portable(raised))


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


# A value that many items name: stored once in the cluster, and taken from there once by each worker.


T = TypeVar("T")
MOST_HELD = 8
"""Values that a worker holds; those go that were asked for longest ago."""
_held: OrderedDict[str, Any] = OrderedDict()


class Shared(Generic[T]):
    """A handle that can be sent to workers, in the place of its value.

    Args:
        value: stored in the cluster that this process is connected to, for as long as anybody has the handle.
    """

    def __init__(self, value: T) -> None:
        import ray

        self._reference = ray.put(value)
        self.key: str = self._reference.hex()
        """Tells values apart."""

    def fetch(self) -> T:
        """Return the value, and hold no copy of it."""
        import ray

        found: T = ray.get(self._reference)
        return found

    def get(self) -> T:
        """Return the value; in a worker, the same object each time, as long as it is held."""
        if self.key not in _held:
            _held[self.key] = self.fetch()
        _held.move_to_end(self.key)
        if len(_held) > MOST_HELD:
            _held.popitem(last=False)
        value: T = _held[self.key]
        return value


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


class Actors:
    """Actors of a Ray cluster that this process is connected to: placed by resources, more of them where nodes join.

    Args:
        kind: their class.
        setup: makes what one works with. It is stored once, and every actor takes it from there.
        settings: how many, and what Ray sets aside for each.
        notice: called with what a user should know, such as what the workers print.
        most: there are never more.
        more: further options of Ray.
    """

    def __init__(
        self, kind: type, setup: Any, settings: ScaleConfig, notice: Notice, most: int | None = None, **more: Any
    ) -> None:
        import ray

        self._ray, self._settings, self._notice, self._most = ray, settings, notice, most
        self._setup = ray.put(setup)
        # Not Ray's own restarts: a restarted actor waits for room with its items, while other workers are idle.
        self._make = ray.remote(kind).options(
            num_cpus=settings.cpus_per_worker,
            num_gpus=settings.gpus_per_worker,
            scheduling_strategy="SPREAD",
            max_restarts=0,
            max_task_retries=0,
            **more,
        )
        self._actors: dict[str, Any] = {}
        self._started = self._left_out = 0
        # Ray calls back in a thread that its own calls wait for: what it says is queued there, and read elsewhere.
        self._events: queue.SimpleQueue[tuple[str, bool, Future[Any]]] = queue.SimpleQueue()
        self._look_at = 0.0

    def _start_more(self) -> list[str]:
        """Start actors where there is room for more; their names."""
        if time.monotonic() < self._look_at:
            return []
        wanted = self._settings.workers
        if wanted == AUTO:  # a number is asked for whatever room there is: a cluster that scales adds nodes for it
            wanted = places(self._ray.nodes(), self._settings)
        missing = min(int(wanted), self._most or int(wanted)) - self._left_out - len(self._actors)
        names = [f"Worker {self._started + place}" for place in range(1, missing + 1)]
        for name in names:
            self._started += 1
            self._actors[name] = actor = self._make.remote(os.getcwd())
            self._call(name, True, actor.start.remote(self._setup))
        self._look_at = time.monotonic() + LOOK_S
        return names

    def _call(self, worker: str, starts: bool, reference: Any) -> None:
        reference.future().add_done_callback(lambda done: self._events.put((worker, starts, done)))

    def _leave_out(self, worker: str) -> None:
        """End a worker that cannot start, and start no other in its place."""
        self._ray.kill(self._actors.pop(worker))
        self._left_out += 1

    def _kill_all(self) -> None:
        for actor in self._actors.values():
            self._ray.kill(actor)
        self._actors.clear()


class RayCrew(Actors):
    """Actors that work on the items of a `Pool`; never more of them than items (`most`)."""

    def __init__(self, setup: Setup, settings: ScaleConfig, most: int, notice: Notice) -> None:
        super().__init__(Worker, setup, settings, notice, max(1, most))
        self._later: set[str] = set()  # workers that did not come with the first ones
        self._printed: set[str] = set()
        self._alone_since: float | None = time.monotonic()

    def give(self, worker: str, item: Any) -> None:
        """Have a ready worker without an item work on this one; nothing where it is gone, as `wait` will say."""
        actor = self._actors.get(worker)
        if actor is not None:
            self._call(worker, False, actor.work.remote(item))

    def wait(self) -> Sequence[Event]:
        """Wait for what happens next, for a moment at most; start workers where there is room for more. One thread waits at a time."""
        self._staff()
        try:
            found = [self._events.get(timeout=WAIT_S)]
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
        self._kill_all()

    def _staff(self) -> None:
        """Start workers where there is room for more."""
        later = self._started > 0
        if not self._actors:
            self._left_out = 0
        started = self._start_more()
        if later:
            self._later.update(started)
        if self._alone_since is not None and time.monotonic() - self._alone_since > PATIENCE_S:
            free = self._ray.available_resources()
            self._notice(
                f"No worker is ready after {PATIENCE_S:g} s: loading is slow, or other work uses the resources it needs (CPU "
                f"{self._settings.cpus_per_worker:g}, GPU {self._settings.gpus_per_worker:g}; free: CPU {free.get('CPU', 0):g}, GPU "
                f"{free.get('GPU', 0):g})."
            )
            self._alone_since = None

    def _event(self, worker: str, starts: bool, call: Future[Any]) -> Event:
        from ray.exceptions import RayError, RayTaskError

        try:
            found = call.result()
        except RayTaskError as error:  # it could not even be unpacked there
            wrong = ScaleError(f"{worker}: {type(error.cause).__name__}: {error.cause}")
            found = ("", Answer(error=wrong)) if starts else Answer(error=wrong)
        except RayError as error:
            self._ray.kill(self._actors.pop(worker))  # where it can only not be reached, it must not go on
            self._look_at = 0.0
            if not self._actors:
                self._alone_since = time.monotonic()
            return Event("lost", worker, why=cause_of(error))
        host, answer = found if starts else ("", found)
        for line in answer.printed:  # each once
            if line not in self._printed and len(self._printed) < MOST_PRINTED:
                self._printed.add(line)
                self._notice(f"{worker}: {line}")
        if not starts:
            return Event("done", worker, answer.result, answer.error)
        if answer.error is not None:
            self._leave_out(worker)
            return Event("refused", worker, error=answer.error)
        self._alone_since = None
        if worker in self._later:
            self._notice(f"{worker} joins, on {host}.")
        return Event("ready", worker, answer.result)


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


# Hosts as Ray's actors: processes that hold environments, placed by resources, more of them where nodes join.


POLL_S = 0.1
"""Seconds between two looks for a host that is ready."""


THREADS = 64
"""Environments of a host that are called at the same time."""


class HostLostError(Exception):
    """The process of a host is gone, with the environments in it; `during_call`: while this one was called."""

    def __init__(self, why: str, during_call: bool) -> None:
        super().__init__(why)
        self.during_call = during_call


class Hosts(Actors):
    """Actors that hold environments, made by `make`; several threads may call them."""

    def __init__(self, make: MakeEnv, settings: ScaleConfig, notice: Notice) -> None:
        super().__init__(Host, make, settings, notice, max_concurrency=THREADS)
        self._ready: Counter[str] = Counter()  # hosts that have started, with the number of their environments
        self._refused: Exception | None = None
        self._failed_starts, self._why = 0, ""
        self._alone = ""  # name of the environment that goes on alone
        self._closing: list[Any] = []
        self._changed = threading.Condition(threading.RLock())
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
                        f"No worker is ready after {PATIENCE_S:g} s: loading is slow, or other work uses the resources it needs."
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
            raise HostLostError("its worker died", False)
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
            self._kill_all()
            self._changed.notify_all()

    def _staff(self) -> None:
        """Start hosts where there is room for more, and learn which have started."""
        while not self._events.empty():
            host, _, start = self._events.get()
            try:
                _, found = start.result()
            except Exception as error:  # whatever Ray has to say of a host that could not start
                self._failed_starts, self._why = self._failed_starts + 1, cause_of(error)
                self._lose(host, self._why)
                if self._gives_up:
                    self._notice(
                        f"Starting no more workers: {self._failed_starts} in a row ended before they were ready."
                    )
                continue
            if found.error is None:
                self._ready[host], self._failed_starts = 0, 0
                self._changed.notify_all()
            else:
                self._refused = found.error
                self._leave_out(host)
                if self._ready:
                    self._notice(f"{host} cannot start and is skipped: {found.error}")
        if not self._gives_up:
            self._start_more()

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
            again = "Its environments are recreated on other workers." if held else "It had no environments."
            self._notice(f"{host} died: {why}. {again}")


class HostedEnv(gymnasium.Env[str, str]):
    """Environment that lives in a host.

    Where the host dies, the episode is played again in another one: the same reset, the same actions. An environment that then shows something
    else cannot go on.

    Args:
        hosts: where it may live.
        retries: times that an episode is played again after its own call ended a host.
        expensive: as the environment itself says (`TextEnv.expensive`).
    """

    elsewhere = True
    """It computes in another process, so that others may be called meanwhile; see `rollout.rollout`."""

    def __init__(self, hosts: Hosts, retries: int, expensive: bool = False) -> None:
        self._hosts, self._retries, self.expensive = hosts, retries, expensive
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
                    if self._deaths > self._retries:
                        raise EnvError(
                            f"The worker of this environment has ended {self._deaths} times in one episode, the last time because {lost}. It may use too much memory, or end the process. To retry more often: scale.max_retries."
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
