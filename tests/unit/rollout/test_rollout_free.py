"""Episodes that run side by side: nobody waits for a slow one, and nothing that hangs can hold up the run."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from skill_ttrl.agents.agent import Agent, PromptFormatter
from skill_ttrl.envs import TextEnv
from skill_ttrl.errors import BudgetError, ModelError
from skill_ttrl.llm.backend import Generation, Request, Sampling
from skill_ttrl.rollout.episode import EnvPool
from skill_ttrl.rollout.rollout import Schedule
from skill_ttrl.signals import Interrupted
from skill_ttrl.types import Group, Task, Trajectory
from tests import rollouts
from tests.scripted_backend import ScriptedBackend

FOREVER = 30.0
"""Seconds that stand for ever: a test that waited for them would fail by its own limits."""


class Count(TextEnv):
    """Counts to `options["to"]`; what it does at one of its numbers, `options["at"]`, is `options["then"]`."""

    release = threading.Event()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.options, self.at = options or {}, 0
        self._do("reset")
        return f"{self.options['name']} at 0, seed {seed}", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.at += 1
        self._do(self.at)
        ended = self.at >= self.options["to"]
        return f"{self.options['name']} at {self.at}", float(ended), ended, False, {"won": ended}

    def _do(self, at: object) -> None:
        if self.options.get("at") == at:
            then = self.options["then"]
            if then == "hang":
                self.release.wait(FOREVER)
            elif isinstance(then, float):
                time.sleep(then)
            elif then == "signal":
                raise Interrupted("a signal came while the game was at work", 15)
            else:
                raise TimeoutError("the game's own")


class Asked(ScriptedBackend):
    """Answers "go"; what happens to a request is said by its prompt."""

    def __init__(self, happens: Callable[[str], Any] = lambda prompt: None) -> None:
        super().__init__(["go"])
        self.happens = happens
        self.calls: list[list[tuple[str, int, int]]] = []

    async def generate(self, requests: Sequence[Request], sampling: Sampling, *, seed: int) -> list[Generation]:
        self.calls.append([(request.messages[-1].content, request.n, seed) for request in requests])
        for request in requests:
            found = self.happens(request.messages[-1].content)
            if isinstance(found, float):
                await asyncio.sleep(found)
            elif found is not None:
                raise found
        return await super().generate(requests, sampling, seed=seed)


def task(name: str, to: int = 2, **more: Any) -> Task:
    return Task(name, "Count-v0", {"name": name, "to": to, **more})


def play(
    tasks: Sequence[Task],
    backend: ScriptedBackend | None = None,
    tries: int = 1,
    envs: EnvPool | None = None,
    **more: Any,
) -> list[Group]:
    settings = {"max_turns": 9, "schedule": "async", **more}
    return rollouts.play(
        envs or Count, tasks, tries, backend or Asked(), Agent(PromptFormatter("plain"), "none"), **settings
    )


def ends(groups: Sequence[Group]) -> list[str]:
    return [each.stop_reason for group in groups for each in group.trajectories]


@pytest.mark.parametrize("schedule", ["sync", "async"])
def test_groups_and_tries_keep_their_order(schedule: Schedule) -> None:
    told: list[Trajectory] = []
    groups = play([task("a", 3), task("b", 1)], tries=2, schedule=schedule, on_episode=told.append)
    assert [[len(each.steps) for each in group.trajectories] for group in groups] == [[3, 3], [1, 1]]
    assert [group.task.id for group in groups] == ["a", "b"] and set(ends(groups)) == {"terminated"}
    assert sorted(each.task.id for each in told) == ["a", "a", "b", "b"]
    if schedule == "sync":
        assert [each.task.id for each in told] == ["b", "b", "a", "a"]


def test_nobody_waits_for_a_slow_environment() -> None:
    told: list[tuple[str, float]] = []
    slow = task("slow", 4, at=2, then=0.4)
    play([slow, task("b", 8), task("c", 8)], on_episode=lambda each: told.append((each.task.id, time.monotonic())))
    assert [name for name, _ in told][-1] == "slow"
    assert max(at for name, at in told if name != "slow") < told[-1][1] - 0.05


def test_the_first_turn_of_a_group_is_one_request_and_every_later_one_has_a_seed_of_its_own() -> None:
    backend, again = Asked(), Asked()
    for each in (backend, again):
        play([task("a"), task("b")], each, tries=3)
    asked = [request for call in backend.calls for request in call]
    assert sorted(n for _, n, _ in asked) == [1] * 6 + [3, 3]
    assert len({seed for _, _, seed in asked}) == len(asked)
    assert sorted(asked) == sorted(request for call in again.calls for request in call)


@pytest.mark.parametrize("schedule", ["sync", "async"])
@pytest.mark.parametrize("at", ["reset", 2])
def test_an_environment_that_hangs_ends_its_own_episode_and_is_used_no_more(schedule: Schedule, at: object) -> None:
    made: list[Count] = []

    def make() -> Count:
        made.append(Count())
        return made[-1]

    envs, began = EnvPool(make), time.monotonic()
    tasks = [task("a", 3), task("hung", 3, at=at, then="hang"), task("c", 3)]
    groups = play(tasks, schedule=schedule, envs=envs, rollout_timeout_s=0.2)
    assert ends(groups) == ["terminated", "timeout", "terminated"] and time.monotonic() - began < 3
    hung = groups[1].trajectories[0]
    assert len(hung.steps) == (0 if at == "reset" else 1) and not hung.is_success
    assert hung.error is not None and "rollout.rollout_timeout_s" in hung.error and "had not answered" in hung.error
    again = play([task("a"), task("b"), task("c")], schedule=schedule, envs=envs, rollout_timeout_s=5)
    assert ends(again) == ["terminated"] * 3 and len(made) == 4  # one in the place of the one that hangs
    Count.release.set()
    Count.release.clear()


def test_an_answer_that_never_comes_holds_up_only_who_asked() -> None:
    told: list[str] = []
    backend = Asked(lambda prompt: FOREVER if "hung at 1" in prompt else None)
    groups = play(
        [task("hung", 3), task("b", 3)], backend, rollout_timeout_s=0.2, on_episode=lambda t: told.append(t.task.id)
    )
    assert ends(groups) == ["timeout", "terminated"] and told == ["b", "hung"]
    assert len(groups[0].trajectories[0].steps) == 1


def test_an_error_of_the_sampler_ends_the_rollout_and_all_that_was_asked() -> None:
    def happens(prompt: str) -> Any:
        return ModelError("the engine failed") if "bad at 1" in prompt else FOREVER if "slow at 1" in prompt else None

    backend = Asked(happens)
    began = time.monotonic()
    with pytest.raises(ModelError, match="the engine failed"):
        play([task("slow", 9), task("bad", 9)], backend)
    assert time.monotonic() - began < 5


def test_when_the_budget_is_spent_answers_on_their_way_are_waited_for() -> None:
    came: list[str] = []

    class Paid(Asked):
        async def generate(self, requests: Sequence[Request], sampling: Sampling, *, seed: int) -> list[Generation]:
            found = await super().generate(requests, sampling, seed=seed)
            came.append(requests[0].messages[-1].content)
            return found

    on_its_way = threading.Event()

    def happens(prompt: str) -> Any:
        if "late" in prompt:
            on_its_way.set()
            return 0.2
        return BudgetError("spent") if on_its_way.is_set() else 0.01

    with pytest.raises(BudgetError):
        play([task("first", 99), task("late", 1)], Paid(happens))
    assert came[-1].startswith("late at 0")


class Blocking(ScriptedBackend):
    """Computes where it is called, as `hf` does, and takes as long for one as for many."""

    blocking = True

    def __init__(self) -> None:
        super().__init__(["go"])
        self.rows: list[int] = []

    async def generate(self, requests: Sequence[Request], sampling: Sampling, *, seed: int) -> list[Generation]:
        self.rows.append(sum(request.n for request in requests))
        time.sleep(0.02)
        return await super().generate(requests, sampling, seed=seed)


def test_a_sampler_that_blocks_is_asked_by_many_at_once() -> None:
    backend = Blocking()
    groups = play([task(str(number), 4) for number in range(8)], backend, tries=2)
    assert set(ends(groups)) == {"terminated"} and sum(backend.rows) == 64
    assert len(backend.rows) <= 8 and backend.rows[0] == 16
