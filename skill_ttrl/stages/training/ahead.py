"""Rollouts that run ahead of the learner (`rl.max_staleness`): sampled in threads, taken in order.

A step's rollouts are started while earlier steps are learned from, but never across a checkpoint or an evaluation: there nothing is in flight, so
that a run which goes on from it does what it would have done.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextvars import copy_context
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from skill_ttrl.config import RLConfig
from skill_ttrl.llm.hand_over import LEFT, PLACE
from skill_ttrl.types import Group

LEAVE_S = 10.0
"""Longest wait, in seconds, for the turns in flight of a run that leaves."""


@dataclass(frozen=True, slots=True)
class Rollouts:
    """Rollouts of one batch of tasks, before they are rewarded."""

    groups: list[Group]
    greedy: list[Group]
    """A greedy rollout of each task, where the algorithm requires them."""
    seconds: float
    """Wall time of the sampling."""


Prepare = Callable[[int], Callable[[], Rollouts]]
"""Called in the main thread with the number of a step; the function that it gives rolls it out, in another thread."""


def barriers(rl: RLConfig) -> tuple[int, ...]:
    """Numbers of steps at whose multiples nothing is in flight: those between checkpoints, and between evaluations."""
    return (rl.save_steps,) if rl.eval_steps is None else (rl.save_steps, rl.eval_steps)


def next_barrier(rl: RLConfig, step: int) -> int:
    """Steps that are done at the first checkpoint, evaluation or end of the phase after `step` of them."""
    return min(rl.steps, *((step // period + 1) * period for period in barriers(rl)))


class RolloutsAhead:
    """The rollouts in flight, by step.

    With `rl.in_flight_updates` all of them are sampled at the same time, else one step after the other. Their threads are daemons: the process
    ends without one whose environment hangs.
    """

    def __init__(self, rl: RLConfig, update_weights: Callable[[int], None], prepare: Prepare) -> None:
        self._rl, self._update_weights, self._prepare = rl, update_weights, prepare
        self._running: dict[int, Future[Rollouts]] = {}
        self._threads: dict[int, threading.Thread] = {}
        self._left = threading.Event()

    def take(self, step: int) -> Rollouts:
        """Wait for the rollouts of a step, after `step` updates; those of the steps that may run ahead are started.

        Raises:
            BaseException: what ended them.
        """
        for later in range(step, min(step + self._rl.max_staleness + 1, next_barrier(self._rl, step))):
            if later not in self._running:
                self._start(later)
        found = self._running[step].result()
        del self._running[step], self._threads[step]
        return found

    def hand_over(self, policy_version: int) -> None:
        """Hand the learner's weights to the sampler: between two turns, or once nothing is in flight (`rl.in_flight_updates`)."""
        if not self._rl.in_flight_updates:
            wait(self._running.values())
        self._update_weights(policy_version)

    def _start(self, step: int) -> None:
        roll_out = self._prepare(step)
        before = None if self._rl.in_flight_updates else self._running.get(step - 1)
        future = self._running[step] = Future[Rollouts]()
        context = copy_context()
        context.run(LEFT.set, self._left)
        context.run(PLACE.set, step)
        thread = self._threads[step] = threading.Thread(
            target=context.run, args=(_carry_out, future, roll_out, before), name=f"rollouts-{step}", daemon=True
        )
        thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Drop the rollouts in flight, after an error or a stop rule: they end at their next turn, or are left alone after `LEAVE_S`."""
        self._left.set()
        until = time.monotonic() + LEAVE_S
        for thread in self._threads.values():
            thread.join(max(0.0, until - time.monotonic()))


def _carry_out(future: Future[Rollouts], roll_out: Callable[[], Rollouts], before: Future[Rollouts] | None) -> None:
    if before is not None:
        wait([before])
    try:
        future.set_result(roll_out())
    except BaseException as error:  # passed on to whoever takes them, also a signal or an exit
        future.set_exception(error)
