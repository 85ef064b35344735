"""`SkillTTRL/ALFWorld-v0`: a household task, one command a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from skill_ttrl.envs.alfworld.engine import FastEngine
from skill_ttrl.envs.alfworld.frame import MAX_STEPS, Engine, Frame
from skill_ttrl.envs.alfworld.game import Game, load_game, read_game_file, task_in_words, walkthrough_of
from skill_ttrl.envs.alfworld.games import GameList, open_games
from skill_ttrl.envs.alfworld.official import OfficialEngine, load_packages
from skill_ttrl.envs.alfworld.survey import Progress
from skill_ttrl.envs.arguments import (
    RENDER_MODES,
    check_action,
    check_choice,
    check_episode,
    check_flags,
    reset_options,
)
from skill_ttrl.envs.text_env import TextEnv
from skill_ttrl.errors import EnvError
from skill_ttrl.types import Task

ALFWORLD_ENV_ID = "SkillTTRL/ALFWorld-v0"
ENGINES = ("fast", "official")
_OPTIONS = ("task", "walkthrough", "reference")


class ALFWorldEnv(TextEnv):
    """Household tasks of ALFWorld in text: find, clean, heat, cool, light and place things; 50 steps at most.

    `reset(options={"task": id})` plays one game; without, the seed draws one of the split. The observation is the engine's
    feedback; `step` takes any text and gives `reward` × won. `info` has `admissible_commands` (sorted; the engine knows no
    other), `won`, `task` (in words), `task_type`, `game` (its id), `gamefile`, `source` and `state` (see `text_env`); with
    `options={"walkthrough": True}` also `walkthrough`, commands that win, which no agent may know.

    `terminated` when the goal holds, `truncated` after `max_steps`. Both engines give the same episode for the same commands.
    What never changes of a game is read once and shared by all environments of a process. An environment pickles in the middle
    of an episode; it is written as its commands, which are played again where it is read.

    Args:
        data: a folder with `json_2.1.1/`, or `generated` for this package's own games. None: `$ALFWORLD_DATA` where it is set,
            else `generated`.
        split: `train`, `valid_seen` or `valid_unseen`, of which seeds draw.
        task_types: only these (see `game.TASK_TYPES`); None: all six.
        engine: `fast`, or `official` for the engine of the package alfworld, some thousand times slower.
        max_steps: steps of an episode.
        reward: of a won game (SkillRL: 10).
        strict: refuse a split with a game that cannot be read, instead of leaving it out.
        render_mode: `ansi`: `render()` gives the last frame as text.

    Raises:
        EnvError: there are no such games, an argument is not known, or the packages of the official engine are missing.
    """

    metadata = {"render_modes": [*RENDER_MODES], "render_fps": 1}  # noqa: RUF012 (as Gymnasium declares it)
    config_defaults: ClassVar[Mapping[str, Any]] = {
        "agent.template": "alfworld",
        "agent.memory": "window",
        "agent.projection": "action",
        "agent.max_turns": MAX_STEPS,
        "data.max_prompt_tokens": 4096,
        "rl.reward": "env",
    }

    def __init__(
        self,
        data: str | Path | None = None,
        split: str = "train",
        task_types: Sequence[str] | None = None,
        engine: str = "fast",
        max_steps: int = MAX_STEPS,
        reward: float = 1.0,
        strict: bool = False,
        render_mode: str | None = None,
    ) -> None:
        super().__init__()
        _check(engine, strict, max_steps=max_steps, reward=reward, render_mode=render_mode)
        if engine == "official":
            load_packages()  # where they are missing this is said now, and not once for every game
        self.games: GameList = open_games(data, split, task_types=task_types, strict=strict, engine=engine)
        self.engine = engine
        self.expensive = engine == "official"
        self.max_steps = max_steps
        self.reward = float(reward)
        self.render_mode = render_mode
        self._game: Game | None = None
        self._engine: Engine | None = None
        self._frame: Frame | None = None
        self._task = ""
        self._commands: list[str] = []

    @classmethod
    def prepare(cls, progress: Progress, data: str | Path | None = None, split: str = "train", **others: Any) -> None:
        """Make or read the games of a split, which takes seconds the first time; see `skill_ttrl.envs.prepare_env`.

        The other arguments of the environment are checked first; `progress` is told of (games, games in all).

        Raises:
            EnvError: see the environment.
        """
        _check(**others)
        engine = str(others.get("engine", "fast"))  # which games count as damaged depends on it
        if engine == "official":
            load_packages()  # where they are missing this is said before thousands of games are read
        open_games(data, split, strict=others.get("strict") is True, engine=engine, progress=progress)

    def tasks(self, split: str | None = None) -> list[Task]:
        """The games of a split in their fixed order, or of the environment's own split; see `TextEnv.tasks`."""
        games = self.games if split is None else self.games.of(split)
        return [
            Task(game.id, ALFWORLD_ENV_ID, options={"task": game.id}, split=game.split, task_type=game.task_type)
            for game in games
        ]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Begin a game.

        Args:
            seed: draws a game where no task is given.
            options: `task`, the id of a game of any split of the same data (`env.unwrapped.games[3].id`; a number is refused, it
                would mean another game with other data); `walkthrough`, whether `info` has one. `reference` means nothing here.

        Raises:
            EnvError: an option is not known, there is no such game, or it cannot be read.
        """
        super().reset(seed=seed)
        asked = reset_options(ALFWORLD_ENV_ID, options, _OPTIONS)
        if asked.get("task") is None:
            game = self.games[int(self.np_random.integers(len(self.games)))]
        else:
            game = self.games.find(asked["task"])
        if game != self._game or self._engine is None:
            self._engine = self._make_engine(game)
        self._game, self._commands = game, []
        self._frame = self._engine.reset()
        self._task = task_in_words(self._frame.feedback)
        info = self._info()
        if asked.get("walkthrough"):
            info["walkthrough"] = list(walkthrough_of(read_game_file(game.path)))
        return self._frame.feedback, info

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """One command; any text. White space around it means nothing, and what is not admissible changes nothing. Once the episode
        is over, nothing changes and nothing is paid.

        Raises:
            EnvError: `action` is no `str`, or there was no `reset` before.
        """
        check_action(ALFWORLD_ENV_ID, action)
        if self._engine is None:
            raise EnvError("step was called before reset.")
        assert self._frame is not None
        if self._frame.won or len(self._commands) >= self.max_steps:  # it is over: nothing is won or paid any more
            return self._frame.feedback, 0.0, self._frame.won, not self._frame.won, self._info()
        self._commands.append(action)
        self._frame = self._engine.step(action)
        won = self._frame.won
        truncated = not won and len(self._commands) >= self.max_steps
        return self._frame.feedback, self.reward if won else 0.0, won, truncated, self._info()

    def render(self) -> str | None:
        """The last command and what came of it; None without `render_mode="ansi"`."""
        if self.render_mode is None or self._frame is None:
            return None
        said = [f"> {self._commands[-1]}"] if self._commands else []
        return "\n".join([*said, self._frame.feedback])

    def close(self) -> None:
        """Let go of the game; `reset` begins another."""
        self._engine = self._game = self._frame = None

    def _info(self) -> dict[str, Any]:
        assert self._frame is not None and self._game is not None and self._engine is not None
        return {
            "admissible_commands": list(self._frame.commands),
            "won": self._frame.won,
            "task": self._task,
            "task_type": self._game.task_type,
            "game": self._game.id,
            "gamefile": str(self._game.path),
            "source": self._game.source,
            "state": self._engine.state(),
        }

    def _make_engine(self, game: Game) -> Engine:
        if self.engine == "official":
            return OfficialEngine(game.path)
        return FastEngine(load_game(game.path).world)

    def __getstate__(self) -> dict[str, Any]:
        """An episode is written as its commands: worlds are large, and the official engine is no Python object."""
        return {**self.__dict__, "_engine": None}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state)
        if self._game is not None:
            self._engine = self._make_engine(self._game)
            self._engine.reset()
            for command in self._commands:
                self._engine.step(command)


def _check(engine: object = "fast", strict: object = False, **others: object) -> None:
    check_choice("engine", engine, ENGINES)
    check_episode(**others)
    check_flags(strict=strict)
