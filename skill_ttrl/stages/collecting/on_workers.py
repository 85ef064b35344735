"""Episodes of a scripted agent on the workers of a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Protocol

from skill_ttrl.config import ScaleConfig
from skill_ttrl.progress import Progress
from skill_ttrl.rollout.outcome import EpisodeResult
from skill_ttrl.scale.run import open_pool
from skill_ttrl.stages.collecting.collection import Unit
from skill_ttrl.types import Task

MOST_A_BATCH = 16
"""Most episodes that travel together."""
BATCHES = 64
"""Batches that there are at least, where there are so many episodes: what the last workers are at ends at about the same time."""

Played = tuple[str, EpisodeResult]
"""The line of an episode, and what is counted of it."""


class Playing(Protocol):
    """Plays units one after another; what it gives for one depends on that one alone."""

    def __call__(self, unit: Unit) -> Played:
        """Play one."""
        ...

    def check(self, tasks: Sequence[Task]) -> None:
        """Raise `EnvError` where agent and environment cannot be made here, or none of these tasks be played."""
        ...


@contextmanager
def on_workers(
    make: Callable[[], Playing], units: Sequence[Unit], scale: ScaleConfig, progress: Progress
) -> Iterator[Generator[Played]]:
    """Yield what each unit gives, in order, played by workers that end with the block.

    Args:
        make: makes what plays, once in each worker: a class of a module, or a `partial` of one.
        units: at least one.
        scale: the cluster, and what a worker takes.
        progress: gets what workers print, and what becomes of them.

    Raises:
        ScaleError: there is no cluster, or its nodes are not ready.
    """
    size = max(1, min(MOST_A_BATCH, len(units) // BATCHES))
    batches = [units[start : start + size] for start in range(0, len(units), size)]
    tried = [units[place][0] for place in dict.fromkeys((0, len(units) // 2, len(units) - 1))]
    check, setup = partial(_check, make, tried), partial(_set_up, make, tried)
    with open_pool(setup, check, scale, most=len(batches), progress=progress) as pool:
        yield (each for batch in pool.map(batches) for each in batch)


def _check(make: Callable[[], Playing], tasks: Sequence[Task]) -> None:
    make().check(tasks)


def _set_up(
    make: Callable[[], Playing], tasks: Sequence[Task]
) -> tuple[Callable[[Sequence[Unit]], list[Played]], None]:
    """`scale.worker.Setup`: plays batches. Checked again: the worker's node may have joined after the others were asked."""
    playing = make()
    playing.check(tasks)
    return lambda units: [playing(unit) for unit in units], None
