"""Environments whose steps wait, as those behind a network do."""

from __future__ import annotations

import time
from itertools import count
from typing import Any

import gymnasium
import numpy as np

from skill_ttrl.envs import TextEnv
from skill_ttrl.envs.math.env import MathEnv
from skill_ttrl.types import Task

WAITING = f"{__name__}:Waiting-v0"


class Waiting(gymnasium.Wrapper[str, str, str, str]):
    """An environment whose steps wait `seconds`: that of `quickstart`, or with `turns` one that computes nothing (`Idle`).

    With probability `slow_fraction` a step waits `slow_factor` times as long. With `one_of` only the first step of one episode in so many waits.
    """

    made, episodes = count(), count()

    def __init__(
        self,
        seconds: float = 0.0,
        slow_fraction: float = 0.0,
        slow_factor: float = 1.0,
        one_of: int | None = None,
        turns: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(Idle(turns, **kwargs) if turns else MathEnv(**kwargs))
        self._seconds, self._one_of = seconds, one_of
        self._slow_fraction, self._slow_factor = slow_fraction, slow_factor
        self._delays = np.random.default_rng(next(Waiting.made))  # rollouts of a group are reset with one seed

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        self._waits = self._one_of is None or next(Waiting.episodes) % self._one_of == 0
        return super().reset(seed=seed, options=options)

    def step(self, action: str) -> tuple[str, Any, bool, bool, dict[str, Any]]:
        if self._waits:
            slow = self._delays.random() < self._slow_fraction
            time.sleep(self._seconds * (self._slow_factor if slow else 1.0))
        self._waits = self._one_of is None
        return super().step(action)


class Idle(TextEnv):
    """Episodes of `turns` turns without an aim."""

    def __init__(self, turns: int, tasks: int = 64, actions: list[str] | None = None) -> None:
        super().__init__()
        self._length, self._splits = turns, {"train": tasks, "test": 2}
        self._info = {"admissible_commands": actions} if actions else {}

    def tasks(self, split: str | None = None) -> list[Task]:
        return [
            Task(f"{name}/{number}", WAITING, {"number": number + 100 * (name == "test")}, split=name)
            for name, length in self._splits.items()
            if split in (None, name)
            for number in range(length)
        ]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self._turns = 0
        return f"Number {(options or {}).get('number', 0)}.", dict(self._info)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self._turns += 1
        odd = len(action) % 2
        return "Again.", float(odd), self._turns == self._length, False, {"won": odd == 1, **self._info}


gymnasium.register("Waiting-v0", entry_point=Waiting)
