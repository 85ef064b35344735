"""A small environment with tasks of two types, and players of it: what collecting is tried on. For tests only."""

from __future__ import annotations

import random
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium

from skill_ttrl.envs import TextEnv
from skill_ttrl.errors import EnvError
from skill_ttrl.types import Task

DOORS = "tests.doors:Doors-v0"
TASKS = {"train": 30, "test": 6}
MAX_STEPS = 3


class Doors(TextEnv):
    """Open the door that is named; three steps at most."""

    def __init__(self, pause: float = 0.0, broken: Sequence[int] = (), worn: bool = False, apart: bool = False) -> None:
        super().__init__()
        self._held_out = 100 if apart else 0  # the doors of two splits have the same numbers otherwise
        if worn:
            warnings.warn("a hinge squeaks", stacklevel=2)
        self._pause, self._broken = pause, broken
        self._right = ""
        self._steps = 0

    def tasks(self, split: str | None = None) -> list[Task]:
        names = TASKS if split is None else {split: TASKS.get(split, 0)}
        return [
            Task(
                f"{name}/{number}",
                DOORS,
                {"door": number + self._held_out * (name == "test")},
                split=name,
                task_type=("left", "right")[number % 2],
            )
            for name, count in names.items()
            for number in range(count)
        ]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        number = (options or {"door": 0})["door"]
        if number in self._broken:
            raise RuntimeError(f"door {number} is stuck")
        self._right, self._steps = ("left", "right")[number % 2], 0
        return f"Door {number}: open the {self._right} one. Grüße, 門.", self._info()

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        time.sleep(self._pause)
        self._steps += 1
        won = action == self._right
        return ("Open." if won else "Closed."), float(won), won, self._steps >= MAX_STEPS, self._info()

    def _info(self) -> dict[str, Any]:
        return {"admissible_commands": ["left", "right", "wait"], "source": "joinery"}


class Opener:
    """Opens the door that is named; the left one at the second try only."""

    def start(self, observation: str, info: Mapping[str, Any], seed: int) -> None:
        self._door = observation.split()[4]
        self._waits = self._door == "left"

    def act(self, observation: str, info: Mapping[str, Any]) -> str:
        waits, self._waits = self._waits, False
        return "wait" if waits else self._door


class Clumsy(Opener):
    """Fails at every door whose number ends in 3."""

    def start(self, observation: str, info: Mapping[str, Any], seed: int) -> None:
        if observation.partition(":")[0].endswith("3"):
            raise ValueError("dropped the key")
        super().start(observation, info, seed)


class Quitter(Opener):
    """Leaves Python at the left doors; talks to itself."""

    def act(self, observation: str, info: Mapping[str, Any]) -> str:
        print("hm", flush=True)
        if self._door == "left":
            raise SystemExit("enough")
        return super().act(observation, info)


class Lost(Opener):
    """Cannot begin."""

    def __init__(self) -> None:
        raise RuntimeError("no map")


class Wordless(Opener):
    """Says something that is no text."""

    def act(self, observation: str, info: Mapping[str, Any]) -> Any:
        return 7


class Deadly(Opener):
    """Ends its process."""

    def act(self, observation: str, info: Mapping[str, Any]) -> str:
        import os

        os._exit(9)


def opens(body: Mapping[str, Any], draw: random.Random) -> str:
    """Answer of a model: waits first; then the door that the task names, but number 5 is beyond it."""
    said = [message["content"] for message in body["messages"]]
    door = said[0].partition("Door ")[2]
    if len(said) == 1:
        return "wait"
    return "wait" if door.startswith("5") else door.partition("open the ")[2].split()[0]


gymnasium.register("Doors-v0", entry_point="tests.doors:Doors")


def twice(shift: int) -> Callable[[int], int]:
    """What a process does: the later the item the sooner it is done, so that results come in another order."""

    def work_on(number: int) -> int:
        time.sleep(0.01 * (number % 3 == 0))
        if number == 41:
            raise EnvError("41 is not played")
        return 2 * number + shift

    return work_on
