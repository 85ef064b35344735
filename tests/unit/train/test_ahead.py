"""Rollouts that run ahead: never further than they may, never across a checkpoint, taken in order, and gone when the run leaves."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skill_ttrl.config import RLConfig
from skill_ttrl.errors import EndpointError
from skill_ttrl.llm.backend import Request, Sampling, wait_for
from skill_ttrl.llm.hand_over import HandOver
from skill_ttrl.train.state import Rollouts, RolloutsAhead
from tests.scripted_backend import ScriptedBackend


class Scene:
    """A sampler by script, and what was started when."""

    def __init__(self, rl: RLConfig, roll_out: Callable[[int], None] = lambda step: None) -> None:
        self.rl, self.roll_out = rl, roll_out
        self.version = 0
        self.started: dict[int, int] = {}
        self.in_flight = self.most = 0
        self.lock = threading.Lock()
        self.source = ScriptedBackend(["1"])
        self.source.update_weights = self.update_weights  # type: ignore[method-assign]
        self.backend = HandOver(self.source)
        self.ahead = RolloutsAhead(rl, self.backend.update_weights, self.prepare)

    def update_weights(self, policy_version: int) -> None:
        self.version = policy_version

    def prepare(self, step: int) -> Callable[[], Rollouts]:
        assert step not in self.started, "each step once"
        self.started[step] = self.version

        def sample() -> Rollouts:
            with self.lock:
                self.in_flight += 1
                self.most = max(self.most, self.in_flight)
            try:
                self.roll_out(step)
            finally:
                with self.lock:
                    self.in_flight -= 1
            return Rollouts([], float(step))

        return sample

    def turn(self) -> None:
        wait_for(self.backend.generate([Request()], Sampling(), seed=0))


@given(
    steps=st.integers(1, 12),
    staleness=st.integers(1, 4),
    save=st.integers(1, 6),
    every=st.none() | st.integers(1, 6),
    in_flight=st.booleans(),
)
def test_rollouts_run_as_far_ahead_as_they_may_and_no_further(
    steps: int, staleness: int, save: int, every: int | None, in_flight: bool
) -> None:
    staleness = staleness if in_flight else 1
    rl = RLConfig(steps=steps, max_staleness=staleness, save_steps=save, eval_steps=every, in_flight_updates=in_flight)
    scene = Scene(rl)
    barriers = {step for step in range(1, steps + 1) if step % save == 0 or (every and step % every == 0)} | {steps}
    with scene.ahead as ahead:
        for step in range(steps):
            assert ahead.take(step).seconds == step
            if step in barriers:
                assert scene.started[step] == step, "nothing was started before a checkpoint or an evaluation"
            ahead.hand_over(step + 1)
    assert sorted(scene.started) == list(range(steps))
    for step, version in scene.started.items():
        last = max((each for each in barriers if each <= step), default=0)
        assert version == max(last, step - staleness, 0)
    assert scene.most <= (staleness + 1 if in_flight else 1)


def lead(scene: Scene, steps: int) -> None:
    """Take so many steps, then leave as a user does."""
    with scene.ahead as ahead:
        for step in range(steps):
            ahead.take(step)
            ahead.hand_over(step + 1)
        raise KeyboardInterrupt


def test_an_error_is_raised_where_its_step_is_taken() -> None:
    def fail(step: int) -> None:
        if step == 1:
            raise EndpointError("no answer", "failed")

    scene = Scene(RLConfig(steps=4, max_staleness=3), fail)
    with pytest.raises(EndpointError, match="no answer"):
        lead(scene, 2)
    assert scene.version == 1 and not rollout_threads()


def test_a_run_that_leaves_ends_its_rollouts_at_their_next_turn() -> None:
    turns: dict[int, int] = {}

    def play(step: int) -> None:
        for turn in range(1 if step == 0 else 10**6):
            scene.turn()
            turns[step] = turn

    scene = Scene(RLConfig(steps=4, max_staleness=3), play)
    with pytest.raises(KeyboardInterrupt):
        lead(scene, 1)
    assert not rollout_threads() and max(turns.values(), default=0) < 10**6 - 1


def test_without_updates_in_flight_a_hand_over_waits_for_the_rollouts() -> None:
    go = threading.Event()
    scene = Scene(
        RLConfig(steps=4, max_staleness=1, in_flight_updates=False), lambda step: None if step == 0 else _wait(go)
    )
    with scene.ahead as ahead:
        ahead.take(0)
        threading.Timer(0.05, go.set).start()
        ahead.hand_over(1)
        assert go.is_set() and scene.version == 1
        ahead.take(1)


def _wait(event: threading.Event) -> None:
    assert event.wait(10)


def rollout_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("rollouts-")]
