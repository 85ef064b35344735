"""An environment that waits, as one behind a network does: for benchmarks/ray_throughput.py."""

from __future__ import annotations

import time
from typing import Any

import gymnasium

from skill_ttrl.envs import TextEnv
from skill_ttrl.types import Task

WAITING = "benchmarks.waiting_env:Waiting-v0"


class Waiting(TextEnv):
    """Every step takes `pause` seconds, and an episode `steps` of them; nothing is computed."""

    def __init__(self, pause: float = 0.05, steps: int = 10, tasks: int = 64) -> None:
        super().__init__()
        self._pause, self._length, self._count = pause, steps, tasks
        self._steps = 0

    def tasks(self, split: str | None = None) -> list[Task]:
        return [Task(f"train/{number}", WAITING, {"number": number}, split="train") for number in range(self._count)]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        return "Wait.", {"admissible_commands": ["wait", "look"]}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        time.sleep(self._pause)
        self._steps += 1
        return "Wait.", 0.0, self._steps >= self._length, False, {"admissible_commands": ["wait", "look"]}


gymnasium.register("Waiting-v0", entry_point="benchmarks.waiting_env:Waiting")
