"""Weights that are handed to a sampler while rollouts are in flight, between two of their turns.

PipelineRL (arXiv 2509.19128) and AReaL (arXiv 2505.24298) change weights in the middle of a completion. Here a completion is of one version
throughout, `Completion.policy_version`, so that an episode of several turns may have several.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Sequence
from contextvars import ContextVar
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

    Turns go on at the same time, or one after the other where the backend is `blocking`, then by `PLACE`. A hand-over waits for those that
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
        """See `Backend.generate`.

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
        """See `Backend.update_weights`; between two turns."""
        with self._changed:
            self._handing_over = True
        try:
            with self._changed:
                self._changed.wait_for(lambda: not self._turns)
            self.source.update_weights(policy_version)
        finally:
            self._handing_over = False

    def sleep(self) -> None:
        """Nothing to give back: rollouts go on while the learner learns."""

    def _begin(self, place: int) -> bool:
        """Begin a turn, if now is the time for one of this place."""
        refuse_abandoned()
        with self._changed:
            free = not self._handing_over
            if free and self._one_at_a_time:
                free = not self._turns and not any(count for earlier, count in self._waiting.items() if earlier < place)
            self._turns += free
            return free
