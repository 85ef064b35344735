"""Requests of many callers as one batch, for a sampler that computes where it is called.

Such a sampler, `hf`, takes about as long for one request as for many, and while it computes nobody else can ask. Whoever asks waits
here until all have asked that may, or until waiting longer would cost more than it can bring.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from skill_ttrl.llm.backend import Backend, Generation, Request, Sampling

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
        """See `Backend.generate`; those who ask at about the same time share one batch."""
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
