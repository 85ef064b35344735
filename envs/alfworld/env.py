"""`SkillTTRL/ALFWorld-v0`: a household task, one command a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from skill_ttrl.envs.alfworld.engine import MAX_STEPS, FastEngine, Frame
from skill_ttrl.envs.alfworld.games import (
    Game,
    GameList,
    Progress,
    load_game,
    open_games,
    read_game_file,
    task_in_words,
    walkthrough_of,
)
from skill_ttrl.envs.alfworld.rules import TREATED, Rule, advice, draw_rule, move, room_and_words, vary
from skill_ttrl.envs.text_env import (
    TextEnv,
    check_action,
    check_choice,
    check_episode,
    reset_options,
)
from skill_ttrl.errors import EnvError
from skill_ttrl.types import Task, derive_seed

ALFWORLD_ENV_ID = "SkillTTRL/ALFWorld-v0"
RULES = ("real", "varied")
_OPTIONS = ("task", "walkthrough", "ground_truth", "rule", "skill", "moved")


class ALFWorldEnv(TextEnv):
    """Household tasks of ALFWorld in text: find, clean, heat, cool, light and place things; 50 steps at most.

    `reset(options={"task": id})` plays one game; without, the seed draws one of the split. The observation is the engine's
    feedback; `step` takes any text and gives `reward` × won. `info` has `admissible_commands` (sorted; the engine knows no
    other), `won`, `task` (in words), `task_type`, `game` (its id), `gamefile`, `source` and `state` (see `text_env`); with
    `options={"walkthrough": True}` also `walkthrough`, commands that win, which no agent may know.

    `terminated` when the goal holds, `truncated` after `max_steps`.
    All environments of a process share a game's constant data, which is read once. An environment can be pickled in the middle of
    an episode: the pickle stores its commands, and unpickling replays them.

    Args:
        data: a folder with `json_2.1.1/`, or `generated` for this package's own games. None: `$ALFWORLD_DATA` where it is set,
            else `generated`.
        split: `train`, `valid_seen` or `valid_unseen`, from which seeds draw.
        task_types: only these (see `game.TASK_TYPES`); None: all six.
        max_steps: steps of an episode.
        reward: of a won game (SkillRL: 10).
        rules: `varied` plays the games of `train` in which an object is cleaned, heated or cooled under other rules (`rules.py`); a skill
            of the task states its rule. All other games are unchanged.
        variants: number of rules for each of these games, one task each.
        moved: number of additional versions of each game of `train`, one task each. In them the objects that the task needs lie in
            receptacles drawn from all those in the room that take them (`rules.move`). Validation games have none.

    Raises:
        EnvError: there are no such games, or an argument is not known.
    """

    config_defaults: ClassVar[Mapping[str, Any]] = {
        "agent.template": "alfworld",
        "agent.context_mode": "window",
        "agent.action_parser": "action",
        "agent.max_turns": MAX_STEPS,
        "data.max_prompt_tokens": 4096,
        "rl.reward": "env",
    }

    def __init__(
        self,
        data: str | Path | None = None,
        split: str = "train",
        task_types: Sequence[str] | None = None,
        max_steps: int = MAX_STEPS,
        reward: float = 1.0,
        rules: str = "real",
        variants: int = 1,
        moved: int = 0,
    ) -> None:
        super().__init__()
        _check(rules, variants, moved, max_steps=max_steps, reward=reward)
        self.games: GameList = open_games(data, split, task_types=task_types)
        self.rules, self.variants, self.moved = rules, variants, moved
        self.max_steps = max_steps
        self.reward = float(reward)
        self._game: Game | None = None
        self._engine: FastEngine | None = None
        self._frame: Frame | None = None
        self._task = ""
        self._rule: Rule | None = None
        self._version: int | None = None
        self._commands: list[str] = []

    @classmethod
    def prepare(cls, progress: Progress, data: str | Path | None = None, split: str = "train", **others: Any) -> None:
        """Make or read the games of a split, which takes seconds the first time; see `skill_ttrl.envs.prepare_env`.

        The other arguments of the environment are checked first; `progress` is called with (games done, games in total).

        Raises:
            EnvError: see the environment.
        """
        _check(**others)
        open_games(data, split, progress=progress)

    def tasks(self, split: str | None = None) -> list[Task]:
        """The games of a split in their fixed order, or of the environment's own split; see `TextEnv.tasks`."""
        games = self.games if split is None else self.games.of(split)
        return [task for game in games for task in self._tasks_of(game)]

    def _tasks_of(self, game: Game) -> list[Task]:
        """The game as it is or its variants, each also in its versions."""
        tasks = self._variants_of(game)
        if game.split == "train":
            tasks += [
                replace(task, id=f"{task.id}~{number}", options={**task.options, "moved": number})
                for task in tasks
                for number in range(self.moved)
            ]
        return tasks

    def _variants_of(self, game: Game) -> list[Task]:
        """The game as it is, or under other rules."""
        kind = TREATED.get(game.task_type)
        if self.rules != "varied" or kind is None or game.split != "train":
            return [
                Task(game.id, ALFWORLD_ENV_ID, options={"task": game.id}, split=game.split, task_type=game.task_type)
            ]
        tasks = []
        for number in range(self.variants):
            name = f"{game.id}#{number}"
            seed = derive_seed(0, "rule", name)
            receptacles, put = room_and_words(game.path)
            rule = draw_rule(kind, receptacles, seed)
            options = {"task": game.id, "rule": str(rule), "skill": advice(rule, seed, put)}
            tasks.append(Task(name, ALFWORLD_ENV_ID, options=options, split=game.split, task_type=game.task_type))
        return tasks

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Begin a game.

        Args:
            seed: draws a game where no task is given.
            options: `task`, the id of a game of any split of the same data (`env.unwrapped.games[3].id`; a number is refused, it
                would mean another game with other data); `walkthrough`, whether `info` has one; `rule`, another rule of its
                treatment (`STATE VERB TOOL`), which `info` then names; `moved`, the number of a version of the game in which what the
                task needs lies elsewhere, which `info` then has. `ground_truth` and `skill` mean nothing here.

        Raises:
            EnvError: an option is not known, there is no such game, or it cannot be read.
        """
        super().reset(seed=seed)
        asked = reset_options(ALFWORLD_ENV_ID, options, _OPTIONS)
        if asked.get("task") is None:
            game = self.games[int(self.np_random.integers(len(self.games)))]
            tasks = self._tasks_of(game)
            drawn = tasks[int(self.np_random.integers(len(tasks))) if len(tasks) > 1 else 0]
            asked |= {name: drawn.options.get(name) for name in ("rule", "moved")}
        else:
            game = self.games.find(asked["task"])
        rule = None if asked.get("rule") is None else Rule.parse(asked["rule"])
        version = _version(asked.get("moved"))
        if (game, rule, version) != (self._game, self._rule, self._version) or self._engine is None:
            self._engine = self._make_engine(game, rule, version)
        self._game, self._rule, self._version, self._commands = game, rule, version, []
        self._frame = self._engine.reset()
        self._task = task_in_words(self._frame.feedback)
        info = self._info()
        if asked.get("walkthrough"):
            if rule is not None:
                raise EnvError("A game under another rule has no walkthrough; the stored one follows its true rule.")
            if version is not None:
                raise EnvError(
                    "A game with moved objects has no walkthrough; the stored one follows their true places."
                )
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
            **({} if self._rule is None else {"rule": str(self._rule)}),
            **({} if self._version is None else {"moved": self._version}),
        }

    def _make_engine(self, game: Game, rule: Rule | None, version: int | None) -> FastEngine:
        world = load_game(game.path).world
        if version is not None:
            world = move(world, derive_seed(0, "moved", game.id, version))
        return FastEngine(world) if rule is None else vary(world, rule)

    def __getstate__(self) -> dict[str, Any]:
        """An episode is written as its commands: worlds are large."""
        return {**self.__dict__, "_engine": None}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state)
        if self._game is not None:
            self._engine = self._make_engine(self._game, self._rule, self._version)
            self._engine.reset()
            for command in self._commands:
                self._engine.step(command)


def _check(
    rules: object = "real",
    variants: object = 1,
    moved: object = 0,
    **others: object,
) -> None:
    check_choice("rules", rules, RULES)
    for name, number, least in (("variants", variants, 1), ("moved", moved, 0)):
        if not isinstance(number, int) or isinstance(number, bool) or number < least:
            raise EnvError(f"{name} must be a number of at least {least}, found {number!r:.80}.")
    check_episode(**others)


def _version(number: object) -> int | None:
    """The option `moved`.

    Raises:
        EnvError: it is no number of a version.
    """
    if number is None or (isinstance(number, int) and not isinstance(number, bool) and number >= 0):
        return number
    raise EnvError(f"moved is the number of a version, 0 or more, found {number!r:.80}.")
