"""Weights that are handed to a sampler while rollouts are in flight, between two of their turns.

PipelineRL (arXiv 2509.19128) and AReaL (arXiv 2505.24298) change weights in the middle of a completion. Here a completion is of one version
throughout, `Completion.policy_version`, so that an episode of several turns may have several.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from skill_ttrl.llm.backend import Backend, Generation, Request, Sampling

POLL_S = 0.002
"""Seconds between two looks of a turn that waits. It cannot block: the turns that it waits for may be of its own event loop."""


LEFT: ContextVar[threading.Event | None] = ContextVar("left", default=None)
"""Set where the run has left the rollouts that sample in this context; they end at their next turn."""


PLACE: ContextVar[int] = ContextVar("place", default=0)
"""Place of the rollouts that sample in this context, among those in flight: the lowest is waited for first."""


class AbandonedError(asyncio.CancelledError):
    """A rollout whose run has left. Like any that is cancelled it is no `Exception`, and no event loop reports it as lost."""


def refuse_abandoned() -> None:
    """Raise `AbandonedError` where the run has left the rollouts of this context."""
    left = LEFT.get()
    if left is not None and left.is_set():
        raise AbandonedError


class HandOver:
    """Another backend, for rollouts of several threads; everything that is not here is that backend's.

    Turns run at the same time, or one after the other if the backend is `blocking`, then by `PLACE`. A hand-over waits for those that
    have begun; those that come meanwhile wait for it.
    """

    def __init__(self, source: Backend) -> None:
        self.source = source
        self._one_at_a_time = bool(getattr(source, "blocking", False))
        self._changed = threading.Condition()
        self._turns = 0
        self._waiting: Counter[int] = Counter()
        self._handing_over = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.source, name)

    async def generate(self, requests: Sequence[Request], sampling: Sampling, *, seed: int) -> list[Generation]:
        """Sample from the source backend, after any weight update and earlier turns that must finish first.

        Raises:
            AbandonedError: the run has left.
        """
        place = PLACE.get()
        with self._changed:
            self._waiting[place] += 1
        try:
            while not self._begin(place):
                await asyncio.sleep(POLL_S)
        finally:
            with self._changed:
                self._waiting[place] -= 1
        try:
            return await self.source.generate(requests, sampling, seed=seed)
        finally:
            with self._changed:
                self._turns -= 1
                self._changed.notify_all()

    def update_weights(self, policy_version: int) -> None:
        """Update the source backend's weights between two turns: waits for running turns and holds new ones."""
        with self._changed:
            self._handing_over = True
        try:
            with self._changed:
                self._changed.wait_for(lambda: not self._turns)
            self.source.update_weights(policy_version)
        finally:
            self._handing_over = False

    def sleep(self) -> None:
        """Keep the memory: rollouts continue while the learner trains."""

    def _begin(self, place: int) -> bool:
        """Begin a turn, if now is the time for one of this place."""
        refuse_abandoned()
        with self._changed:
            free = not self._handing_over
            if free and self._one_at_a_time:
                free = not self._turns and not any(count for earlier, count in self._waiting.items() if earlier < place)
            self._turns += free
            return free


# Requests of many callers as one batch, for a sampler that computes where it is called. Such a sampler, `hf`, takes about as long for one
# request as for many, and while it computes nobody else can ask. Whoever asks waits here until all have asked that may, or until
# waiting longer would cost more than it can bring.

MAX_WAIT_FRACTION = 0.25
"""Longest wait for others, as a share of the seconds that the last batch took."""
AT_FIRST = 0.05
"""Longest wait before the first batch, in seconds."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    requests: Sequence[Request]
    sampling: Sampling
    seed: int
    answer: asyncio.Future[list[Generation]]


class BatchingBackend:
    """Another backend whose concurrent `generate` calls are batched; everything else is that backend's. For one event loop.

    What is sampled depends on who is in a batch with whom, and so on time: the seed is that of the first in it. `num_pending` gives
    the most samples that may be requested at present: once so many are, nobody is waited for.
    """

    def __init__(self, backend: Backend, num_pending: Callable[[], int]) -> None:
        self.source, self._num_pending = backend, num_pending
        self._waiting: list[_Waiting] = []
        self._arrived = asyncio.Event()
        self._serving: asyncio.Task[None] | None = None
        self._took: float | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.source, name)

    async def generate(self, requests: Sequence[Request], sampling: Sampling, *, seed: int) -> list[Generation]:
        """Sample every request; concurrent requests share one batch (`Backend.generate`)."""
        asked = _Waiting(requests, sampling, seed, asyncio.get_running_loop().create_future())
        self._waiting.append(asked)
        self._arrived.set()
        if self._serving is None:
            self._serving = asyncio.create_task(self._serve())
        return await asked.answer

    async def _serve(self) -> None:
        """Answer batch after batch until nobody waits."""
        try:
            while self._waiting:
                await self._wait_for_others()
                how = self._waiting[0].sampling
                batch = [each for each in self._waiting if each.sampling == how and not each.answer.done()]
                self._waiting = [each for each in self._waiting if each.sampling != how]
                if batch:
                    await self._answer(batch)
        finally:
            self._serving = None

    async def _wait_for_others(self) -> None:
        until = time.monotonic() + (AT_FIRST if self._took is None else MAX_WAIT_FRACTION * self._took)
        while sum(request.n for each in self._waiting for request in each.requests) < self._num_pending():
            self._arrived.clear()
            try:
                async with asyncio.timeout(until - time.monotonic()):
                    await self._arrived.wait()
            except TimeoutError:
                return

    async def _answer(self, batch: Sequence[_Waiting]) -> None:
        requests = [request for each in batch for request in each.requests]
        began = time.monotonic()
        try:
            found = iter(await self.source.generate(requests, batch[0].sampling, seed=batch[0].seed))
        except BaseException as error:
            for each in batch:
                if not each.answer.done():
                    each.answer.set_exception(error)
            if not isinstance(error, Exception):
                raise
            return
        self._took = time.monotonic() - began
        for each in batch:
            answers = [next(found) for _ in each.requests]
            if not each.answer.done():  # its asker has left
                each.answer.set_result(answers)
