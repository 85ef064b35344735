"""MyEnv: a Skill-TTRL environment in one file. Replace the game by your own.

It shows "Reverse 4713." and wants "<answer>3174</answer>". Train a small model on it, without labels:

    skillttrl train my_env.yaml

Importing this file registers the environment, so every command takes it as `--env my_env:MyEnv-v0`.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import Any

import gymnasium

from skill_ttrl.answers import extract
from skill_ttrl.envs import TextEnv
from skill_ttrl.errors import SplitError
from skill_ttrl.types import Task

ENV_ID = "MyEnv-v0"

# Every number of four digits without a zero, shuffled once and for all, so that the parts never overlap.
NUMBERS = ["".join(digits) for digits in itertools.product("123456789", repeat=4)]
random.Random(0).shuffle(NUMBERS)
SPLITS = {"test": NUMBERS[:64], "train": NUMBERS[64:192], "demos": NUMBERS[192:1192]}


class MyEnv(TextEnv):
    """Reverse the digits of a number: one turn, reward 1 for the right answer."""

    def __init__(self) -> None:
        super().__init__()
        self._number = ""

    def tasks(self, split: str | None = None) -> Sequence[Task]:
        """What is played and measured. `ground_truth` only measures: a run without labels never trains on it."""
        if split is not None and split not in SPLITS:
            raise SplitError(f"{ENV_ID} has no split {split!r}, only {', '.join(SPLITS)}.")
        numbers = NUMBERS[:1192] if split is None else SPLITS[split]
        return [
            Task(id=number, env_id=ENV_ID, options={"number": number}, split=split or "all", ground_truth=number[::-1])
            for number in numbers
        ]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Show the number in `options`, or one drawn with `seed`."""
        super().reset(seed=seed)
        if options and "number" in options:
            self._number = options["number"]
        else:
            self._number = SPLITS["train"][int(self.np_random.integers(len(SPLITS["train"])))]
        return f"Reverse {self._number}.", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Score the model's text. Any text must be accepted: what makes no sense earns nothing."""
        answer = extract(action)
        reward = 1.0 if answer == self._number[::-1] else 0.0
        return "", reward, True, False, {"answer": answer}


gymnasium.register(ENV_ID, entry_point=f"{__name__}:MyEnv")
