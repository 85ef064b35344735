"""From settings to workers: the cluster, a look at its nodes, and the pool or the hosts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from skill_ttrl.config import ScaleConfig
from skill_ttrl.progress import Progress
from skill_ttrl.scale.cluster import connected
from skill_ttrl.scale.crew import RayCrew
from skill_ttrl.scale.host import MakeEnv
from skill_ttrl.scale.hosts import Hosts
from skill_ttrl.scale.pool import Pool
from skill_ttrl.scale.preflight import Check, check_nodes
from skill_ttrl.scale.worker import Setup


@contextmanager
def open_pool(setup: Setup, check: Check, settings: ScaleConfig, *, most: int, progress: Progress) -> Iterator[Pool]:
    """Workers on the nodes of a Ray cluster; they end with the block.

    Args:
        setup: makes what a worker works with; called once in each. A module's own function, or a `partial` of one.
        check: called once on each node, before any worker starts; raises where the node lacks something.
        settings: the cluster, and what a worker takes.
        most: items that there will be at most.
        progress: gets what workers print, and what becomes of them.

    Raises:
        MissingDependencyError: Ray is not installed.
        ScaleError: there is no cluster, or its nodes are not ready; lists all that is wrong.
    """
    with _ready_cluster(check, settings, progress):
        crew = RayCrew(setup, settings, most, lambda text: progress.notice(text, warning=True))
        pool = Pool(crew, settings.max_retries, lambda text: progress.notice(text, warning=True))
        try:
            yield pool
        finally:
            pool.close()


@contextmanager
def open_hosts(make: MakeEnv, check: Check, settings: ScaleConfig, progress: Progress) -> Iterator[Hosts]:
    """Processes on the nodes of a Ray cluster that hold environments; they end with the block.

    Args:
        make: makes an environment in a host.
        check: as for `open_pool`.
        settings: the cluster, and what a host takes.
        progress: gets what becomes of the hosts.

    Raises:
        MissingDependencyError: Ray is not installed.
        ScaleError: there is no cluster, or its nodes are not ready; lists all that is wrong.
    """
    with _ready_cluster(check, settings, progress):
        hosts = Hosts(make, settings, lambda text: progress.notice(text, warning=True))
        try:
            yield hosts
        finally:
            hosts.close()


@contextmanager
def _ready_cluster(check: Check, settings: ScaleConfig, progress: Progress) -> Iterator[None]:
    progress.notice(f"Ray: connecting (scale.address={settings.address}); each node is asked whether it is ready.")
    with connected(settings):
        count, room = check_nodes(check, settings)
        progress.notice(
            f"Ray: {count} node{'s' * (count != 1)} with room for {room} worker{'s' * (room != 1)}; they load now."
        )
        yield
