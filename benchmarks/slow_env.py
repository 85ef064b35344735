"""The environment of `quickstart` with steps that take time, for benchmarks/plan_error.py: `env.id=slow_env:SlowMath-v0`."""

from __future__ import annotations

import time
from itertools import count
from typing import Any

import gymnasium
import numpy as np

from skill_ttrl.envs.math.env import MathEnv


class SlowMath(MathEnv):
    """A step waits `seconds`, and with probability `slow_fraction` `slow_factor` times as long; each instance has a generator of its own."""

    made = count()

    def __init__(
        self, seconds: float = 0.0, slow_fraction: float = 0.0, slow_factor: float = 1.0, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self._seconds, self._slow_fraction, self._slow_factor = seconds, slow_fraction, slow_factor
        self._delays = np.random.default_rng(next(SlowMath.made))  # rollouts of a group are reset with one seed

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        slow = self._delays.random() < self._slow_fraction
        time.sleep(self._seconds * (self._slow_factor if slow else 1.0))
        return super().step(action)


gymnasium.register("SlowMath-v0", entry_point=SlowMath)
