"""A look at every node before anything runs on it: versions, this package, and what the work needs there."""

from __future__ import annotations

import os
import pickle
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import skill_ttrl
from skill_ttrl.config import ScaleConfig
from skill_ttrl.config.scale import AUTO
from skill_ttrl.errors import ScaleError
from skill_ttrl.scale.crew import places

Check = Callable[[], None]
"""Raises on a node that lacks something, with a message for the user."""


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """Facts that a node gives of itself."""

    name: str
    python: str
    ray: str
    skill_ttrl: str
    """Version, or the error of its import."""
    lacks: str = ""
    """Message of the check that failed there; empty: none did."""


def check_nodes(check: Check, settings: ScaleConfig) -> tuple[int, int]:
    """Run the check on every node that has room for a worker, in the cluster that this process is connected to.

    Returns:
        Number of these nodes, and of the workers that they have room for, `scale.workers` at most.

    Raises:
        ScaleError: a node has other versions or lacks something, or none has room for a worker; it lists all that is wrong.
    """
    import ray

    nodes = [node for node in ray.nodes() if node["Alive"]]
    fitting = [node for node in nodes if places([node], settings)]
    if not fitting:
        most = {name: max((node["Resources"].get(name, 0.0) for node in nodes), default=0.0) for name in ("CPU", "GPU")}
        raise ScaleError(
            f"No node has room for a worker of scale.cpus_per_worker={settings.cpus_per_worker:g} and scale.gpus_per_worker="
            f"{settings.gpus_per_worker:g}: the largest of {len(nodes)} has {most['CPU']:g} CPUs, and {most['GPU']:g} GPUs is the most."
        )
    here = NodeFacts("this process", platform.python_version(), ray.__version__, skill_ttrl.__version__)
    if wrong := list(problems(here, _ask(fitting, check))):
        lines = "\n".join(f"  {line}" for line in wrong)
        raise ScaleError(f"Nothing was run, for the nodes of the Ray cluster are not ready:\n{lines}")
    room = places(fitting, settings)
    return len(fitting), room if settings.workers == AUTO else min(room, int(settings.workers))


def problems(here: NodeFacts, nodes: Sequence[NodeFacts]) -> list[str]:
    """Return what is wrong with each node, one sentence each; nodes of which the same is true share one."""
    found: dict[str, list[str]] = {}
    for node in nodes:
        for what, there, own in (
            ("Python", node.python, here.python),
            ("Ray", node.ray, here.ray),
            ("skill-ttrl", node.skill_ttrl, here.skill_ttrl),
        ):
            if there != own:
                found.setdefault(f"{what} is {there}, and {own} here. Install the same on every node.", []).append(
                    node.name
                )
        if node.lacks:
            found.setdefault(node.lacks, []).append(node.name)
    return [f"{', '.join(names)}: {what}" for what, names in found.items()]


def _ask(nodes: Sequence[Any], check: Check) -> list[NodeFacts]:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    def look(name: str, packed: bytes, folder: str) -> tuple[str, str, str, str, str]:
        # Sent by value, with what it needs: this package may not be there.
        import contextlib
        import io
        import os
        import pickle
        import platform

        import ray

        facts = (name, platform.python_version(), ray.__version__)
        with contextlib.suppress(OSError):
            os.chdir(folder)
        try:
            import skill_ttrl
        except Exception as error:
            return (*facts, f"not to be imported ({type(error).__name__}: {error})", "")
        said = io.StringIO()
        try:
            with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
                pickle.loads(packed)()
        except Exception as error:
            return (*facts, skill_ttrl.__version__, str(error) or type(error).__name__)
        return (*facts, skill_ttrl.__version__, "")

    task = ray.remote(num_cpus=0, max_retries=0)(look)
    packed = pickle.dumps(check)
    names = [
        f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']}, node {node['NodeID'][:8]})" for node in nodes
    ]
    asked = [
        task.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)).remote(
            name, packed, os.getcwd()
        )
        for name, node in zip(names, nodes, strict=True)
    ]
    found = []
    for name, reference in zip(names, asked, strict=True):
        try:
            found.append(NodeFacts(*reference.future().result()))  # not `ray.get`, which a signal breaks
        except ray.exceptions.RayError as error:
            said = next((line for line in reversed(str(error).splitlines()) if line.strip()), type(error).__name__)
            raise ScaleError(f"{name} does not answer: {said.strip()}") from None
    return found
