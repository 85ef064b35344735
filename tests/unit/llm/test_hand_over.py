"""Weights are handed over between two turns: what samples at a time, and what waits."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context

import pytest

from skill_ttrl.llm.backend import Generation, Request, Sampling, wait_for
from skill_ttrl.llm.hand_over import LEFT, PLACE, AbandonedError, BatchingBackend, HandOver
from tests.scripted_backend import ScriptedBackend


class Gated(ScriptedBackend):
    """Answers once `open` is set, and counts who asks at the same time."""

    def __init__(self, blocking: bool) -> None:
        super().__init__(["1"])
        self.blocking = blocking
        self.open = threading.Event()
        self.asking = self.most = 0
        self.places = list[int]()
        """Of the turns, as they were asked for."""

    async def generate(self, requests: Sequence[Request], sampling: Sampling, *, seed: int) -> list[Generation]:
        self.asking += 1
        self.places.append(PLACE.get())
        self.most = max(self.most, self.asking)
        while not self.open.is_set():
            await asyncio.sleep(0.001)
        found = await super().generate(requests, sampling, seed=seed)
        self.asking -= 1
        return found

    def update_weights(self, policy_version: int) -> None:
        assert not self.asking, "weights change during a turn"
        self.policy_version = policy_version


def version(backend: HandOver) -> int:
    (made,) = wait_for(backend.generate([Request()], Sampling(), seed=0))
    return made.completions[0].policy_version


def until(condition: object) -> None:
    end = time.monotonic() + 10
    while not condition() and time.monotonic() < end:  # type: ignore[operator]
        time.sleep(0.001)
    assert condition()  # type: ignore[operator]


def test_a_hand_over_waits_for_turns_that_have_begun_and_goes_before_those_that_come_later() -> None:
    source = Gated(blocking=False)
    backend = HandOver(source)
    backend.update_weights(1)
    with ThreadPoolExecutor(4) as pool:
        begun = [pool.submit(version, backend) for _ in range(2)]
        until(lambda: source.asking == 2)
        try:
            handing = pool.submit(backend.update_weights, 2)
            until(lambda: backend._handing_over)
            later = pool.submit(version, backend)
            time.sleep(0.02)
            assert source.asking == 2 and not handing.done(), (
                "the later turn waits for the weights, these for the turns"
            )
        finally:
            source.open.set()
        assert [each.result(10) for each in begun] == [1, 1] and later.result(10) == 2
    assert source.most == 2


def test_of_turns_that_wait_those_that_the_learner_waits_for_go_first() -> None:
    source = Gated(blocking=True)
    backend = HandOver(source)

    def turn(place: int) -> None:
        context = copy_context()
        context.run(PLACE.set, place)
        context.run(version, backend)

    with ThreadPoolExecutor(4) as pool:
        begun = pool.submit(turn, 9)
        until(lambda: source.asking == 1)
        turns = [pool.submit(turn, place) for place in (8, 7, 5)]
        until(lambda: backend._waiting.total() == 3)
        source.open.set()
        for each in (begun, *turns):
            each.result(10)
    assert source.places == [9, 5, 7, 8] and not backend._waiting.total()


@contextmanager
def left() -> Iterator[None]:
    """A context whose run has left."""
    gone = threading.Event()
    gone.set()
    token = LEFT.set(gone)
    try:
        yield
    finally:
        LEFT.reset(token)


def test_who_leaves_ends_rollouts_at_their_next_turn() -> None:
    source = Gated(blocking=False)
    source.open.set()
    backend = HandOver(source)
    with left(), pytest.raises(AbandonedError):
        version(backend)
    assert version(backend) == -1, "the sampler itself is as it was"


def test_leaving_is_silent_also_where_turns_are_batched(capfd: pytest.CaptureFixture[str]) -> None:
    source = Gated(blocking=True)
    source.open.set()
    backend = HandOver(source)

    async def ask() -> None:
        batching = BatchingBackend(backend, lambda: 2)
        await asyncio.gather(*(batching.generate([Request()], Sampling(), seed=0) for _ in range(2)))

    with left(), pytest.raises(AbandonedError):
        wait_for(ask())
    gc.collect()
    assert not capfd.readouterr().err, "asyncio reports exceptions that nobody took"
