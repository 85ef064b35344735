"""ALFWorld, WebShop, Math, or any other environment of ours as a server of OpenEnv.

python -m skill_ttrl.integrations.openenv alfworld --port 8000
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from functools import partial
from typing import Any

from pydantic import Field

from skill_ttrl.envs import make_env, resolve_env
from skill_ttrl.envs.lookup import find_task, split_argument
from skill_ttrl.errors import MissingDependencyError
from skill_ttrl.rollout.episode import admissible_actions, reset_options

try:
    from openenv import core
except ImportError:
    raise MissingDependencyError.for_extra("skill_ttrl.integrations.openenv", "openenv") from None


class TextAction(core.Action):  # type: ignore[misc]
    """An action as the environment takes it: a command, a search, an answer."""

    text: str


class TextObservation(core.Observation):  # type: ignore[misc]
    """An observation of the environment."""

    text: str
    actions: list[str] = Field(default_factory=list)
    """The possible actions, where the environment lists them."""
    task: str = ""
    """Id of the task, after a reset."""
    won: bool | None = None
    score: float | None = None


class GameEnvironment(core.Environment):  # type: ignore[misc]
    """One session: an environment of ours.

    Args:
        env: any name of an environment.
        split: of its tasks.
        kwargs: arguments of the environment.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, env: str, split: str = "train", **kwargs: Any) -> None:
        super().__init__()
        self._name, self._split, self._state = resolve_env(env), split, core.State()
        self._env = make_env(env, **{**kwargs, **split_argument(env, split)})

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, task: str | None = None, **_: Any
    ) -> TextObservation:
        """Begin a task: the one with the id `task` (or the only one whose id contains it), else one drawn with `seed`."""
        found = find_task(self._env, self._name, name=task, split=self._split, seed=seed or 0)
        self._state = core.State(episode_id=episode_id)
        seen, info = self._env.reset(seed=found.seed if seed is None else seed, options=reset_options(found))
        return TextObservation(text=seen, task=found.id, actions=list(admissible_actions(info)))

    def step(self, action: TextAction, timeout_s: float | None = None, **_: Any) -> TextObservation:
        """Play an action."""
        self._state.step_count += 1
        seen, reward, terminated, truncated, info = self._env.step(action.text)
        outcome: Mapping[str, Any] = {name: info[name] for name in ("won", "score") if name in info}
        actions, done = list(admissible_actions(info)), bool(terminated or truncated)
        return TextObservation(text=seen, actions=actions, done=done, reward=float(reward), **outcome)

    @property
    def state(self) -> core.State:
        """Id of the episode and number of steps."""
        return self._state

    def close(self) -> None:
        """Close the environment."""
        self._env.close()


def make_app(env: str, split: str = "train", sessions: int = 64, **kwargs: Any) -> Any:
    """The server's application (FastAPI); arguments as for `GameEnvironment`, and how many sessions it holds at once."""
    # The first environment may have to make its games, and fails at once if an argument is wrong.
    GameEnvironment(env, split, **kwargs).close()
    factory = partial(GameEnvironment, env, split, **kwargs)
    return core.create_fastapi_app(factory, TextAction, TextObservation, max_concurrent_envs=sessions)


def main() -> None:
    """Serve an environment until Ctrl-C."""
    import uvicorn

    parser = argparse.ArgumentParser(prog="python -m skill_ttrl.integrations.openenv", description=main.__doc__)
    parser.add_argument("env", help="alfworld, webshop, math, or any other name of an environment")
    parser.add_argument("--split", default="train")
    parser.add_argument("--kwargs", type=json.loads, default={}, help='arguments of the environment, {"max_steps": 30}')
    parser.add_argument("--sessions", type=int, default=64, help="most at once")
    parser.add_argument("--host", default="127.0.0.1", help="OpenEnv has no password: leave it on this machine")
    parser.add_argument("--port", type=int, default=8000)
    options = parser.parse_args()
    app = make_app(options.env, options.split, options.sessions, **options.kwargs)
    uvicorn.run(app, host=options.host, port=options.port)


if __name__ == "__main__":
    main()
