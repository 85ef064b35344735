"""The environment on a running official server, over HTTP: its pages read, its sessions kept."""

from __future__ import annotations

from typing import Any

import numpy as np

from skill_ttrl.envs.webshop.goal import NO_CEILING, Goal
from skill_ttrl.envs.webshop.visit import View
from skill_ttrl.errors import EnvError


def is_server(data: Any) -> bool:
    """Whether `data` names a running server."""
    return isinstance(data, str) and data.startswith(("http://", "https://"))


class ServerGoals:
    """The goals of a running server, of which only the numbers are known.

    Args:
        address: of the server, for messages.
        count: how many it has; None: not known.
    """

    kind = "server"

    def __init__(self, address: str, count: int | None) -> None:
        self.address, self.count = address, count

    def __len__(self) -> int:
        raise NotImplementedError

    def __getitem__(self, number: int) -> Goal:
        return Goal(f"server-{number}", "", "", "", "", "", "", (), (), NO_CEILING)

    def find(self, goal_id: str) -> int:
        """See `GoalList.find`."""
        raise NotImplementedError

    def split(self, name: str, by: str = "goal") -> np.ndarray[Any, np.dtype[np.int64]]:
        """See `GoalList.split`."""
        raise NotImplementedError

    def weights(self, numbers: np.ndarray[Any, np.dtype[np.int64]]) -> np.ndarray[Any, np.dtype[np.float64]]:
        """See `GoalList.weights`."""
        raise NotImplementedError


class LiveVisit:
    """A visit to a running server."""

    def __init__(self, address: str, mode: str = "text") -> None:
        raise EnvError("live mode is being built")

    def start(self, goal: Goal | int) -> tuple[str, View]:
        """See `Visit.start`."""
        raise NotImplementedError

    def act(self, action: str) -> View:
        """See `Visit.act`."""
        raise NotImplementedError

    def close(self) -> None:
        """See `Visit.close`."""
