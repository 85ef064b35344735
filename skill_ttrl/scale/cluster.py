"""A connection to a Ray cluster, or a cluster of this machine alone for as long as a command runs."""

from __future__ import annotations

import os
import pickle
import secrets
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from typing import Any

import skill_ttrl
from skill_ttrl.config import ScaleConfig
from skill_ttrl.config.runtime import AUTO, LOCAL
from skill_ttrl.cores import cores
from skill_ttrl.errors import MissingDependencyError, WorkerError
from skill_ttrl.progress import Progress
from skill_ttrl.scale.crew import THREADS, Hosts, MakeEnv, RayCrew, make_host, places
from skill_ttrl.workers import Notice, Pool, Setup

CLIENT = "ray://"
CONNECT_S = 5.0
"""Seconds in which a cluster's head must accept a connection."""
START = (
    "Start one with `ray start --head` on one machine and `ray start --address=HEAD:6379` on the others, or use this machine alone: "
    "--set scale.address=local. A cluster that was started with RAY_AUTH_MODE=token needs it here too, and its token (~/.ray/auth_token)."
)


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
    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    own = {"num_cpus": cores(), "include_dashboard": False, "_node_ip_address": "127.0.0.1"} if address == LOCAL else {}
    try:
        ray.init(address=address, **quiet, **own)
    except ConnectionError as error:
        raise WorkerError(
            f"There is no Ray cluster at scale.address={address} ({_first_line(error)}). {START}"
        ) from None
    except Exception as error:  # Ray raises the bare type where a node does not start in time
        if "ersion mismatch" in str(error):
            raise WorkerError(
                f"The Ray cluster at scale.address={address} runs other versions than this process: "
                f"{' '.join(str(error).split())} Install the same Ray and Python on every node and here."
            ) from None
        raise WorkerError(
            f"Cannot use the Ray cluster at scale.address={address}: {_first_line(error)}. {START}"
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


def _first_line(error: Exception) -> str:
    return next((line.strip().rstrip(".") for line in str(error).splitlines() if line.strip()), type(error).__name__)


# A look at every node before anything runs on it: versions, this package, and what the work needs there.


Check = Callable[[], None]
"""Raises on a node that lacks something, with a message for the user."""


def check_nodes(check: Check, settings: ScaleConfig) -> tuple[int, int]:
    """Run the check on every node that has room for a worker, in the cluster that this process is connected to.

    Returns:
        Number of these nodes, and of the workers that they have room for, `scale.workers` at most.

    Raises:
        WorkerError: a node has other versions or lacks something, or none has room for a worker; it lists all that is wrong.
    """
    import ray

    nodes = [node for node in ray.nodes() if node["Alive"]]
    fitting = [node for node in nodes if places([node], settings)]
    if not fitting:
        most = {name: max((node["Resources"].get(name, 0.0) for node in nodes), default=0.0) for name in ("CPU", "GPU")}
        raise WorkerError(
            f"No node has room for a worker of scale.cpus_per_worker={settings.cpus_per_worker:g} and scale.gpus_per_worker="
            f"{settings.gpus_per_worker:g}: the largest of {len(nodes)} has {most['CPU']:g} CPUs, and {most['GPU']:g} GPUs is the most."
        )
    if wrong := problems(_ask(fitting, check)):
        lines = "\n".join(f"  {line}" for line in wrong)
        raise WorkerError(f"Nothing was run because the nodes of the Ray cluster are not ready:\n{lines}")
    room = places(fitting, settings)
    return len(fitting), room if settings.workers == AUTO else min(room, int(settings.workers))


def problems(lacks: Sequence[tuple[str, str]]) -> list[str]:
    """Return what is wrong with each (node, what it lacks), one sentence each; nodes that lack the same share one."""
    found: dict[str, list[str]] = {}
    for name, lack in lacks:
        if lack:
            found.setdefault(lack, []).append(name)
    return [f"{', '.join(names)}: {lack}" for lack, names in found.items()]


def _ask(nodes: Sequence[Any], check: Check) -> list[tuple[str, str]]:
    """(name, what it lacks) of each node. That Ray and Python are the same everywhere Ray sees to itself."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    def look(packed: bytes, folder: str, version: str) -> str:
        # Sent by value, with what it needs: this package may not be there.
        import contextlib
        import io
        import os
        import pickle

        with contextlib.suppress(OSError):
            os.chdir(folder)
        try:
            import skill_ttrl
        except Exception as error:
            return f"skill-ttrl cannot be imported ({type(error).__name__}: {error}). Install {version} on every node."
        if skill_ttrl.__version__ != version:
            return f"skill-ttrl is {skill_ttrl.__version__}, and {version} here. Install the same on every node."
        said = io.StringIO()
        try:
            with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
                pickle.loads(packed)()
        except Exception as error:
            return str(error) or type(error).__name__
        return ""

    task = ray.remote(num_cpus=0, max_retries=0)(look)
    packed = pickle.dumps(check)
    asked = {
        f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']}, node {node['NodeID'][:8]})": task.options(
            scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        ).remote(packed, os.getcwd(), skill_ttrl.__version__)
        for node in nodes
    }
    found = []
    for name, reference in asked.items():
        try:
            found.append((name, reference.future().result()))  # not `ray.get`, which a signal breaks
        except ray.exceptions.RayError as error:
            said = next((line for line in reversed(str(error).splitlines()) if line.strip()), type(error).__name__)
            raise WorkerError(f"{name} does not answer: {said.strip()}") from None
    return found


# From settings to workers: the cluster, a look at its nodes, and the pool or the hosts.


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
    with _ready_cluster(check, settings, progress) as notice:
        crew = RayCrew(setup, settings, notice, most=max(1, most))
        with closing(Pool(crew, notice)) as pool:
            yield pool


@contextmanager
def open_hosts(make: MakeEnv, check: Check, settings: ScaleConfig, progress: Progress) -> Iterator[Hosts]:
    """Workers that hold environments, each made by `make`; they end with the block. Arguments and errors as for `open_pool`."""
    with _ready_cluster(check, settings, progress) as notice:
        crew = RayCrew(partial(make_host, make), settings, notice, threads=THREADS)
        with closing(Hosts(crew, notice)) as hosts:
            yield hosts


@contextmanager
def _ready_cluster(check: Check, settings: ScaleConfig, progress: Progress) -> Iterator[Notice]:
    """The cluster with all its nodes checked; gives what reports the workers' warnings."""
    progress.notice(f"Ray: connecting (scale.address={settings.address}); then each node is checked.")
    with connected(settings):
        count, room = check_nodes(check, settings)
        progress.notice(
            f"Ray: {count} node{'s' * (count != 1)} with room for {room} worker{'s' * (room != 1)}; they load now."
        )
        yield partial(progress.notice, warning=True)
