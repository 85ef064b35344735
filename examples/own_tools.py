"""Tools of one's own: an environment with one, and a function: `agent.tools: [own_tools:miles]`. Run it: python examples/own_tools.py."""

from typing import Any

import gymnasium

from skill_ttrl.envs import TextEnv, make_env
from skill_ttrl.envs.tools import ToolEnv
from skill_ttrl.types import ToolCall


def miles(kilometers: float) -> float:
    """Convert kilometers into miles.

    Args:
        kilometers: The distance.
    """
    return round(kilometers / 1.609344, 2)


class Safe(TextEnv):
    tools = property(lambda self: (self.read_note,))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self._code = str(self.np_random.integers(1000, 10000))
        return "Open the safe: write its code.", {}

    def read_note(self) -> str:
        """Read the note beside the safe."""
        return f"The code is {self._code}."

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return "", float(action == self._code), True, False, {"won": action == self._code}


gymnasium.register("Safe-v0", entry_point=Safe)
if __name__ == "__main__":
    (env := ToolEnv(make_env("Safe-v0"), [miles])).reset(seed=0)
    print(env.step([ToolCall("read_note", "{}"), ToolCall("miles", '{"kilometers": 10}')])[0])
