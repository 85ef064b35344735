"""Episodes on a real small model: actions that are possible, and kept keys and values from the first turn to the last."""

from __future__ import annotations

from typing import Any

import pytest

from skill_ttrl.agents.agent import Agent
from skill_ttrl.agents.prompt import PromptFormatter
from skill_ttrl.envs import TextEnv
from skill_ttrl.llm.backend import Sampling, wait_for
from skill_ttrl.llm.hf import HFBackend
from skill_ttrl.rollout.env_pool import EnvPool
from skill_ttrl.rollout.rollout import RolloutSettings, Schedule, rollout
from skill_ttrl.types import Group, Task

TASKS = [Task(str(number), "Halls-v0", {"doors": 2 + number}) for number in range(3)]


class Halls(TextEnv):
    """A hall after the other, each with as many doors as the last one's number says."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        return self._hall((options or {})["doors"])

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        seen, info = self._hall(int(action.removeprefix("go ")))
        return seen, 0.0, action == "go 1", False, info

    def _hall(self, doors: int) -> tuple[str, dict[str, Any]]:
        return "d" * doors, {"admissible_commands": [f"go {door + 1}" for door in range(doors + 1)]}


def counted(backend: HFBackend) -> tuple[list[Group], int]:
    """Episodes, and how many tokens the model read for them."""
    read: list[int] = []
    hook = backend.model.register_forward_pre_hook(
        lambda module, args, options: read.append(options["input_ids"].numel()), with_kwargs=True
    )
    try:
        return play(backend, "conversation"), sum(read)
    finally:
        hook.remove()


def play(backend: HFBackend, memory: str, schedule: Schedule = "sync") -> list[Group]:
    settings = RolloutSettings(Sampling(max_new_tokens=8), 0, max_turns=4, constrain=True, schedule=schedule)
    agent = Agent(PromptFormatter("plain"), memory)
    return wait_for(rollout(TASKS, 3, envs=EnvPool(Halls), agent=agent, backend=backend, settings=settings))


def test_episodes_are_the_same_with_kept_rows_and_far_fewer_tokens_are_read(
    tiny_model: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = HFBackend(*tiny_model)
    found, read = counted(backend)
    assert backend._kept_rows is None and len({len(each.steps) for group in found for each in group.trajectories}) > 1
    monkeypatch.delattr(HFBackend, "keeping")
    expected, read_without = counted(backend)
    assert read_without > 2 * read
    for group, other in zip(found, expected, strict=True):
        for one, two in zip(group.trajectories, other.trajectories, strict=True):
            assert [step.action for step in one.steps] == [step.action for step in two.steps]
            assert [step.prompt_ids for step in one.steps] == [step.prompt_ids for step in two.steps]
