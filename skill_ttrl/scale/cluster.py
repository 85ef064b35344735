"""Ray as the second implementation of the pool of `skill_ttrl.workers`: its workers are actors of a cluster, or of this machine alone.

They are placed by resources, replaced where they die, and more start where nodes join.
"""

from __future__ import annotations

import os
import queue
import re
import secrets
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing, contextmanager, suppress
from functools import partial
from typing import Any

import skill_ttrl
from skill_ttrl.config import ScaleConfig
from skill_ttrl.config.data import AUTO, LOCAL
from skill_ttrl.cores import cores
from skill_ttrl.errors import MissingDependencyError, WorkerError
from skill_ttrl.progress import Progress
from skill_ttrl.workers import Event, Notice, Pool, Setup, Work, attempt

CLIENT = "ray://"
CONNECT_S = 5.0
"""Seconds in which a cluster's head must accept a connection."""
LOOK_S = 2.0
"""Seconds between two looks at the nodes."""
PATIENCE_S = 30.0
"""Seconds without any worker after which the user is informed."""
START = (
    "Start one with `ray start --head` on one machine and `ray start --address=HEAD:6379` on the others, or use this machine alone: "
    "--set scale.address=local. A cluster that was started with RAY_AUTH_MODE=token needs it here too, and its token (~/.ray/auth_token)."
)
Check = Callable[[], None]
"""Raises on a node that lacks something, with a message for the user."""


@contextmanager
def open_pool(setup: Setup, check: Check, settings: ScaleConfig, *, most: int, progress: Progress) -> Iterator[Pool]:
    """Workers on the nodes of a Ray cluster; they end with the block.

    Args:
        setup: makes what a worker works with; called once in each.
        check: called once on each node, before any worker starts; raises where the node lacks something.
        settings: the cluster, and what a worker takes.
        most: items that there will be at most.
        progress: gets what becomes of the workers.

    Raises:
        MissingDependencyError: Ray is not installed.
        WorkerError: there is no cluster, or its nodes are not ready; lists all that is wrong.
    """
    progress.notice(f"Ray: connecting (scale.address={settings.address}); then each node is checked.")
    with connected(settings):
        check_nodes(check, settings)
        notice = partial(progress.notice, warning=True)
        with closing(Pool(RayCrew(setup, settings, notice, max(1, most)), notice)) as pool:
            yield pool


@contextmanager
def connected(settings: ScaleConfig) -> Iterator[None]:
    """Be connected to the cluster at `scale.address`; a connection that the caller has already is used, and stays.

    Raises:
        MissingDependencyError: Ray is not installed.
        WorkerError: there is no cluster, or it was started with other versions of Ray or Python.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is reported to anybody
    try:
        import ray
    except ImportError:
        raise MissingDependencyError.for_extra("scale.address", "ray") from None
    if ray.is_initialized():
        yield
        return
    address = settings.address or AUTO
    with _own_token(address):
        try:
            main = threading.current_thread() is threading.main_thread()
            before = signal.getsignal(signal.SIGTERM)
            try:
                _connect(address)
            finally:
                if main:  # `ray.init` replaces this process's handler
                    signal.signal(signal.SIGTERM, before)
            yield
        finally:
            ray.shutdown()  # what it has begun too, where it could not connect


def _connect(address: str) -> None:
    import ray

    if address != LOCAL:
        _reach(address)
    own = {"num_cpus": cores(), "include_dashboard": False, "_node_ip_address": "127.0.0.1"} if address == LOCAL else {}
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR", **own)
    except Exception as error:  # Ray raises the bare type where a node does not start in time
        said = " ".join(str(error).split())[:400] or type(error).__name__
        raise WorkerError(
            f"Cannot use the Ray cluster at scale.address={address}: {said.rstrip('.')}. {START}"
        ) from None


def _reach(address: str) -> None:
    """Refuse an address where nothing listens, because Ray itself retries for minutes."""
    from ray._private.services import canonicalize_bootstrap_address

    name, left = "scale.address", ""
    if address == AUTO and os.environ.get("RAY_ADDRESS", AUTO) != AUTO:
        name, address = "RAY_ADDRESS", os.environ["RAY_ADDRESS"]
    elif address == AUTO:
        try:
            address = canonicalize_bootstrap_address(AUTO) or LOCAL
        except ConnectionError:  # there is none: Ray says so at once
            return
        left = " An earlier cluster on this machine left this address behind; `ray stop` removes it."
    if address == LOCAL:
        return
    host, _, port = address.removeprefix(CLIENT).rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_S).close()
    except (OSError, OverflowError, ValueError) as error:
        raise WorkerError(f"Nothing answers at {name}={address} ({error}).{left} {START}") from None


@contextmanager
def _own_token(address: str) -> Iterator[None]:
    """Have a cluster of `local` a token of its own: else Ray writes one into the home, and every later cluster of the user asks for it."""
    if address != LOCAL or {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & os.environ.keys():
        yield
        return
    os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    try:
        yield
    finally:
        del os.environ["RAY_AUTH_TOKEN"]


def check_nodes(check: Check, settings: ScaleConfig) -> None:
    """Run the check on every node that has room for a worker, in the cluster that this process is connected to.

    Raises:
        WorkerError: a node lacks something, or none has room for a worker; it lists all that is wrong.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    fitting = [node for node in ray.nodes() if places([node], settings)]
    if not fitting:
        raise WorkerError(
            f"No node of the Ray cluster has room for a worker of scale.cpus_per_worker={settings.cpus_per_worker:g} and "
            f"scale.gpus_per_worker={settings.gpus_per_worker:g}."
        )
    task = ray.remote(num_cpus=0, max_retries=0)(_lack)
    asked = [
        task.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)).remote(
            check, os.getcwd(), skill_ttrl.__version__
        )
        for node in fitting
    ]
    wrong = []
    for node, reference in zip(fitting, asked, strict=True):
        try:
            lack = reference.future().result()  # not `ray.get`, which a signal breaks
        except ray.exceptions.RayError as error:  # this package is not there, or the node is gone
            lack = f"{str(error).strip().splitlines()[-1]}. Skill-TTRL {skill_ttrl.__version__} must be installed on every node."
        if lack:
            wrong.append(f"  {node['NodeManagerHostname']} (node {node['NodeID'][:8]}): {lack}")
    if wrong:
        raise WorkerError("Nothing was run because the nodes of the Ray cluster are not ready:\n" + "\n".join(wrong))


def _lack(check: Check, folder: str, version: str) -> str:
    """Requirements that the node on which this runs lacks, in words; empty: none."""
    with suppress(OSError):
        os.chdir(folder)
    if skill_ttrl.__version__ != version:
        return f"skill-ttrl is {skill_ttrl.__version__}, and {version} here. Install the same on every node."
    error = attempt(check)[1]
    return "" if error is None else str(error) or type(error).__name__


class Worker:
    """Works in a process of its own. What it prints is in Ray's logs.

    Args:
        folder: The caller's working directory, so that relative paths mean the same where this machine has it.
    """

    def __init__(self, folder: str) -> None:
        self._work: Work | None = None
        with suppress(OSError):
            os.chdir(folder)

    def start(self, setup: Setup) -> tuple[Any, Exception | None]:
        """Make what this worker works with; the facts of the setup, or what it raised."""
        made, error = attempt(setup)
        if error is None:
            self._work, made = made
        return made, error

    def work(self, item: Any) -> tuple[Any, Exception | None]:
        """Work on one item; see `attempt`."""
        assert self._work is not None  # a worker is given nothing before it is ready
        return attempt(partial(self._work, item))


class RayCrew:
    """Actors of the Ray cluster that this process is connected to, as workers of a `Pool`.

    Args:
        setup: makes what one works with. It is stored once, and every actor takes it from there.
        settings: how many, and what Ray sets aside for each.
        notice: called with what a user should know.
        most: there are never more.
    """

    advice = "See the logs of the Ray cluster (/tmp/ray/session_latest/logs on its nodes); often memory has run out."

    def __init__(self, setup: Setup, settings: ScaleConfig, notice: Notice, most: int) -> None:
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
        )
        self._actors: dict[str, Any] = {}
        self._started = self._left_out = 0
        # Ray calls back in a thread that its own calls wait for: what it says is queued there, and read elsewhere.
        self._events: queue.SimpleQueue[tuple[str, bool, Future[Any]]] = queue.SimpleQueue()
        self._look_at = 0.0
        self._alone_since: float | None = time.monotonic()

    def give(self, worker: str, item: Any) -> None:
        """Have a ready worker without an item work on this one; nothing where it is gone, as `wait` will say."""
        if worker in self._actors:
            self._call(worker, False, self._actors[worker].work.remote(item))

    def wait(self, seconds: float) -> Sequence[Event]:
        """Wait for what happens next, for so long at most; start workers where there is room for more. One thread waits at a time."""
        self._staff()
        try:
            found = [self._events.get(timeout=seconds)]
        except queue.Empty:
            return []
        while not self._events.empty():
            found.append(self._events.get())
        return [self._event(*each) for each in found if each[0] in self._actors]

    def close(self) -> None:
        """Stop all workers; what they are at is lost."""
        for worker in [*self._actors]:
            self._end(worker)

    def _staff(self) -> None:
        """Start workers where there is room for more."""
        if time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + LOOK_S
            if not self._actors:
                self._left_out = 0
            wanted = self._settings.workers
            if wanted == AUTO:  # a number is asked for whatever room there is: a cluster that scales adds nodes for it
                wanted = places(self._ray.nodes(), self._settings)
            for _ in range(min(int(wanted), self._most) - self._left_out - len(self._actors)):
                self._started += 1
                name = f"Worker {self._started}"
                self._actors[name] = actor = self._make.remote(os.getcwd())
                self._call(name, True, actor.start.remote(self._setup))
        if self._alone_since is not None and time.monotonic() - self._alone_since > PATIENCE_S:
            self._alone_since = None
            self._notice(
                f"No worker is ready after {PATIENCE_S:g} s: loading is slow, or other work uses the CPUs and GPUs it needs."
            )

    def _call(self, worker: str, starts: bool, reference: Any) -> None:
        reference.future().add_done_callback(lambda done: self._events.put((worker, starts, done)))

    def _event(self, worker: str, starts: bool, call: Future[Any]) -> Event:
        from ray.exceptions import RayError, RayTaskError

        try:
            result, error = call.result()
        except RayTaskError as raised:  # it could not even be unpacked there
            result, error = None, WorkerError(f"{worker}: {type(raised.cause).__name__}: {raised.cause}")
        except RayError as raised:
            self._end(worker)
            self._look_at = 0.0  # it is replaced at once
            found = re.search(r"because (.+?)\.(?:\s|$)", str(raised))
            return Event("lost", worker, why=found[1] if found else f"{raised}".splitlines()[0])
        if not starts:
            return Event("done", worker, result, error)
        if error is not None:
            self._end(worker)
            self._left_out += 1  # no other is started in its place
            return Event("refused", worker, error=error)
        self._alone_since = None
        return Event("ready", worker, result)

    def _end(self, worker: str) -> None:
        self._ray.kill(self._actors.pop(worker))  # where it can only not be reached, it must not go on
        if not self._actors:
            self._alone_since = time.monotonic()


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


def share(value: Any) -> Any:
    """A handle that many items can name in the place of the value, which is stored once in the cluster; see `fetch`."""
    import ray

    return ray.put(value)


def fetch(handle: Any) -> Any:
    """The value of a handle; a copy each time."""
    import ray

    return ray.get(handle)
