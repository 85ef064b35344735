"""An agent that dies, an environment whose data are not everywhere: what a cluster is tried on. For tests only."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium

from skill_ttrl.errors import EnvError
from tests.doors import Doors, Opener

MORTAL = "tests.mortal:Mortal-v0"
MARKS = "SKILL_TTRL_TEST_MARKS"
"""Environment variable with the folder of marks: a process that is to die once leaves one first."""
LOCK = "locked"
"""Mark that holds all doors with data shut, for a minute at most."""


def die_once(name: str) -> None:
    """End this process, but only the first one of all that come here."""
    try:
        (Path(os.environ[MARKS]) / name).touch(exist_ok=False)
    except FileExistsError:
        return
    os._exit(3)


class MortalOpener(Opener):
    """Ends its process at door 7, once."""

    def act(self, observation: str, info: Mapping[str, Any]) -> str:
        if observation.startswith("Door 7"):
            die_once("player")
        return super().act(observation, info)


class Mortal(Doors):
    """Ends its process at door 4, once; has its data on machines with a folder alone.

    Args:
        needs: variable that names the folder of its data.
        dies: end the process.
    """

    def __init__(self, needs: str | None = None, dies: bool = False) -> None:
        super().__init__()
        if needs is not None and not os.environ.get(needs):
            raise EnvError(f"The doors need data. Set {needs} to their folder.")
        self._needs, self._dies = needs, dies

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        if self._dies and options == {"door": 4}:
            die_once("env")
        return super().reset(seed=seed, options=options)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        began = time.monotonic()
        while self._needs and Path(os.environ[self._needs], LOCK).exists() and time.monotonic() - began < 60:
            time.sleep(0.05)
        return super().step(action)


gymnasium.register("Mortal-v0", entry_point="tests.mortal:Mortal")
