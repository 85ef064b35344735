"""Sampling in chunks that survive a kill, for `evaluate`, `vote` and `collect`.

The lines of a plan have a fixed order and each chunk has a seed of its own, so the number of lines that a log holds says where
to continue: stopped at any point and started again, a plan ends with the same bytes as one that was never stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

from skill_ttrl.llm.backend import Sampling
from skill_ttrl.llm.openai.ledger import annotate_budget_error, when_spent
from skill_ttrl.rollout.samples import SamplingPass
from skill_ttrl.signals import StopSignal
from skill_ttrl.types import Group, Task, derive_seed

SampleFn = Callable[[Sequence[Task], int, Sampling, int], list[Group]]
"""(tasks, rollouts per task, sampling, seed) → one group a task, in order."""
SampleChunks = Callable[[Sequence["Chunk"]], Generator[list[Group]]]
"""Chunks → the groups of each, in order; here one chunk after another as they are asked for, or on several workers."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tasks that are sampled together."""

    tasks: tuple[Task, ...]
    draw: SamplingPass
    seed: int
    lines: int
    """Lines of the log that it fills."""
    source: str = ""


def split_into_chunks(
    tasks: Sequence[Task],
    draw: SamplingPass,
    size: int,
    *,
    lines_per_task: int = 1,
    lines: int | None = None,
    source: str = "",
) -> Iterator[Chunk]:
    """Chunks of `size` tasks, in order.

    The first has the seed of `draw`, so that what fits into one chunk is sampled as it would be in one go.

    Args:
        tasks: in the order of the log.
        draw: how each is sampled.
        size: tasks of a chunk.
        lines_per_task: lines of the log that a task fills.
        lines: all lines, where the last task fills fewer.
        source: where the tasks are from.
    """
    left = len(tasks) * lines_per_task if lines is None else lines
    for number, start in enumerate(range(0, len(tasks), size)):
        part = tuple(tasks[start : start + size])
        seed = draw.seed if number == 0 else derive_seed(draw.seed, "chunk", number)
        count = min(left, len(part) * lines_per_task)
        yield Chunk(part, draw, seed, count, source)
        left -= count


def sample_chunks(
    plan: Sequence[Chunk],
    done: int,
    sample: Callable[[Sequence[tuple[Chunk, int]]], Generator[list[Group]]],
    take: Callable[[Chunk, int, list[Group]], None],
    leaving: Callable[[int], str],
) -> None:
    """Sample every chunk that is not whole; one of which a part is there is sampled again, and the rest of it taken.

    Args:
        plan: all chunks, in order.
        done: lines that the log holds.
        sample: samples chunks, each with the number of its lines that are there; yields their groups in order.
        take: takes the groups of a chunk.
        leaving: what to say when it ends within a chunk, of which so many lines are missing.

    Raises:
        Interrupted: a signal came; what was taken stays.
        BudgetError: what may be spent is spent; as above.
    """
    left: list[tuple[Chunk, int]] = []
    for chunk in plan:
        there, done = min(done, chunk.lines), max(0, done - chunk.lines)
        if there < chunk.lines:
            left.append((chunk, there))
    with StopSignal() as stop, closing(sample(left)) as sampled:
        for chunk, there in left:
            message = leaving(chunk.lines - there)
            with stop.interruptible(message), annotate_budget_error(when_spent(message)):
                groups = next(sampled)
            take(chunk, there, groups)
