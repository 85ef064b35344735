"""`SkillTTRL/ALFWorld-v0`: a household task, one command a step; and variants of training games.

Variants have other words and tools of a treatment (`vary`), or the needed things in other places (`move`). In the official games, what is
to be hot is heated with the microwave, whatever a prompt says: a policy that has learnt this needs no advice. A `Rule` gives the
treatment of a game another state in the task, another verb, and another kind of receptacle that does it. Everything else stays.
Observations, commands and answers all have the new words, so only advice tells what to do.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

from skill_ttrl.envs.alfworld.engine import MAX_STEPS, FastEngine, Frame, Tools
from skill_ttrl.envs.alfworld.games import Game, GameList, Progress, load_game, open_games, task_in_words
from skill_ttrl.envs.alfworld.world import ACTIONS, TOOLS, World
from skill_ttrl.envs.text_env import TextEnv, check_action, check_choice, check_episode, check_whole, reset_options
from skill_ttrl.errors import EnvError
from skill_ttrl.types import Task, derive_seed

TREATED = {f"pick_{kind}_then_place_in_recep": kind for kind in ("clean", "heat", "cool")}
"""Type of task → the kind of goal, for those in which a thing is treated before it is placed."""
STATES = {"clean": ("clean",), "heat": ("hot",), "cool": ("cool", "cold")}
"""Kind of goal → the words for a thing that was treated so; the first stands in tasks."""
NAMES = (
    "aged balmy bless blot brush charge chill coat dip drain dry dull dust etch fade flip fold frost fuse gild glaze grate grind ink "
    "iron label lace mash melt mend mint oil paint peel pale polish press prune rinse roast rub rust salt sand scan seal shade sharp "
    "shine sift smoke soak spice split stain stamp steam stiff stir tame tan tint tune warm wax weigh wet wipe wrap zap"
).split()
"""Names for states and verbs. None is a word of the official games."""
KNOWN_WORDS = ("clean", "heat", "hot", "cool")
"""Words of the true rules, which name other treatments in variants: each of them is read and written in training."""
KNOWN_SHARE = 0.3
"""Chance that a name is one of `KNOWN_WORDS`."""
SAME_SHARE = 0.3
"""Chance that state and verb are one word, as those of clean and cool are."""
_KIND = re.compile(rb"\(receptacleType ([^\s?]+) (\w+)Type\)")
_PUT = re.compile(rb'action\s+PutObject\s*\{.*?template\s*::\s*\\"(.*?)\\"', re.DOTALL)
_PLACED = re.compile(rb"\(receptacleAtLocation ([^\s?]+) ")


@dataclass(frozen=True, slots=True)
class Rule:
    """A treatment: what makes a thing what the task wants it to be."""

    state: str
    """Word in the task: "put a hot mug in cabinet"."""
    verb: str
    """Of the command: "heat mug 1 with microwave 1"."""
    tool: str
    """Kind of the receptacle that does it."""

    def __str__(self) -> str:
        return f"{self.state} {self.verb} {self.tool}"

    @classmethod
    def parse(cls, text: object) -> Rule:
        """The rule that `str` gave.

        Raises:
            EnvError: it is not three words.
        """
        words = text.split() if isinstance(text, str) else []
        if len(words) != 3 or not all(re.fullmatch("[a-z]+", word) for word in words):
            raise EnvError(
                f"A rule is three lower-case words, 'STATE VERB TOOL' ('hot heat microwave'), found {text!r:.80}."
            )
        return cls(*words)


TRUE_RULES = {
    "clean": Rule("clean", "clean", "sinkbasin"),
    "heat": Rule("hot", "heat", "microwave"),
    "cool": Rule("cool", "cool", "fridge"),
}
"""Kind of goal → its rule in the official games."""


def draw_rule(kind: str, receptacles: Sequence[str], seed: int) -> Rule:
    """A rule for a game. It shares at most one of its three parts with any true rule, and not its own tool.

    Args:
        kind: of the goal: `clean`, `heat` or `cool`.
        receptacles: kinds of receptacles in the room.
        seed: the same one gives the same rule.

    Raises:
        EnvError: the room has no other receptacle.
    """
    drawn = random.Random(seed)
    tools = [name for name in sorted({*receptacles}) if name != TRUE_RULES[kind].tool]
    if not tools:
        raise EnvError("The room has no receptacle of another kind, which a rule needs.")
    while True:
        state = _name(drawn)
        verb = state if drawn.random() < SAME_SHARE else _name(drawn)
        rule = Rule(state, verb, drawn.choice(tools))
        if all(shared_parts(rule, true) < 2 for true in TRUE_RULES.values()):
            return rule


def _name(drawn: random.Random) -> str:
    return drawn.choice(KNOWN_WORDS if drawn.random() < KNOWN_SHARE else NAMES)


def shared_parts(one: Rule, other: Rule) -> int:
    """Count the parts, of three, that two rules have in common, of the words in either place."""
    words = {one.state, one.verb} & {other.state, other.verb}
    return (len(words) if one.state != one.verb else 2 * len(words)) + (one.tool == other.tool)


def vary(world: World, rule: Rule) -> FastEngine:
    """The same game to be played under another rule of its treatment.

    Words and tools change places: where the new verb, state or tool is that of another treatment, that one gets the old.

    Raises:
        EnvError: the game treats nothing, its room has no such tool, or its task does not say how a thing is to be.
    """
    kind, wanted = world.goal.kind, frozenset({f"{rule.tool}type"})
    if kind not in TRUE_RULES or not any(world.kinds[place] & wanted for place in world.in_sight):
        raise EnvError(f"The rule {str(rule)!r} needs a {rule.tool} in the room, and a task to clean, heat or cool.")
    # Who had the new verb or tool gets the old one.
    verbs = {name: rule.verb if name == kind else kind if name == rule.verb else name for name in ACTIONS}
    tools: Tools = {
        name: (ability, wanted if name == ACTIONS[kind] else TOOLS[ACTIONS[kind]][1] if kinds & wanted else kinds)
        for name, (ability, kinds) in TOOLS.items()
    }
    states = dict.fromkeys(STATES[kind], rule.state)
    for other, words in STATES.items():
        if other != kind and rule.state in words:
            states[rule.state] = STATES[kind][0]
    task = _vary_task(world.task, kind, rule)
    texts = world.texts
    commands, answers = dict(texts.commands), dict(texts.answers)
    for name, action in ACTIONS.items():
        commands[action] = _reword(commands[action], {name: verbs[name]})
        said = f"{action[0].lower()}{action[1:]}.feedback"
        answers[said] = tuple(_reword(text, {name: verbs[name]}) for text in answers[said])
    answers["examineObject.feedback"] = tuple(_reword(text, states) for text in answers["examineObject.feedback"])
    texts = replace(texts, commands=commands, answers=answers, help=_reword(texts.help, verbs))
    return FastEngine(replace(world, texts=texts, task=task, commands={}), tools)


def _vary_task(task: str, kind: str, rule: Rule) -> str:
    """The task's sentence: "heat some mug and put it in …" has the verb, "put a hot mug in …" the state."""
    for pattern, word in ((rf"\b{kind}(?= .* and put it )", rule.verb), (rf"\b{STATES[kind][0]}\b", rule.state)):
        varied, found = re.subn(pattern, word, task, count=1)
        if found:
            return varied
    raise EnvError(f"The task {task!r} does not say {STATES[kind][0]!r}, so its rule cannot be determined.")


def _reword(text: str, names: Mapping[str, str]) -> str:
    """The text with other names, all at once."""
    return re.sub(rf"\b(?:{'|'.join(names)})\b", lambda match: names[match[0]], text)


@lru_cache(maxsize=4096)
def room_and_words(path: Path) -> tuple[tuple[str, ...], str]:
    """The kinds of receptacles in a game's room, sorted, and its command to put X into Y (`move X to Y`, before December 2024 `put X in/on Y`).

    Both are searched in the text of the game's file, which is faster than to read the game.

    Raises:
        EnvError: the file cannot be read.
    """
    try:
        text = path.read_bytes()
    except OSError as error:
        raise EnvError(f"The game {path} cannot be read: {error}.") from None
    placed = {*_PLACED.findall(text)}
    kinds = sorted({kind.decode().lower() for name, kind in _KIND.findall(text) if name in placed})
    found = _PUT.search(text)
    put = "move {o} to {r}" if found is None else found[1].decode()
    return tuple(kinds), re.sub(r"\{o\b[^}]*\}", "X", re.sub(r"\{r\b[^}]*\}", "Y", put))


def advice(rule: Rule, seed: int = 0, put: str = "move X to Y") -> dict[str, str]:
    """A rule as a skill, in the words in which counting (`skills/heuristic_teacher.py`) writes what won.

    Args:
        rule: the rule.
        seed: draws which of the steps are named and which wordings of the task; what is counted differs in these.
        put: the game's command to put X into Y.
    """
    drawn = random.Random(seed)
    take = ["take X from ..."] if drawn.random() < 0.7 else []
    bring = ["go to Y"] if drawn.random() < 0.7 else []
    steps = [*take, f"go to {rule.tool}", f"{rule.verb} X with {rule.tool}", *bring, put]
    said = [f"put a {rule.state} X in Y", f"{rule.verb} some X and put it in Y"]
    drawn.shuffle(said)
    said = said[: drawn.choice((1, 2))]
    order = ", then ".join(f"`{step}`" for step in steps)
    return {
        "title": "Steps in the order that won",
        "text": f"Do these in this order: {order}. X and Y: as the task names them, in its order.",
        "when_to_apply": f"The task reads like: {', or '.join(said)}",
    }


_NEEDED = {"two": 2}
"""Kind of goal → how many things it needs; one where it is not named."""
_BEFORE = ("place", "two")
"""Kinds of goals that would be reached, in part or whole, were the thing to begin where it belongs."""


def move(world: World, seed: int) -> World:
    """The same game with what its task needs in other receptacles.

    All things of the kind go into one drawn receptacle, or into two where two of them are needed, drawn alone: had each a
    receptacle of its own, several would soon be met, and the search would end early. What lies in no receptacle, and what no other
    takes, stays.

    Args:
        world: the game.
        seed: the same one gives the same version.

    Raises:
        EnvError: no receptacle of the room takes a thing of this kind.
    """
    goal, drawn = world.goal, random.Random(seed)
    wanted = f"{goal.object_type}type"
    placed = sorted({thing for things in world.contents.values() for thing in things})
    things = [thing for thing in placed if wanted in world.kinds[thing] and thing in world.able["pickupable"]]
    avoided = f"{goal.target_type}type" if goal.kind in _BEFORE else ""
    places = [
        place
        for place in world.in_sight
        if avoided not in world.kinds[place] and all(world.takes(place, thing) for thing in things)
    ]
    if not things or not places:
        raise EnvError(f"No receptacle of the room can hold the {goal.object_type} of the task, so it cannot be moved.")
    chosen = [drawn.choice(places) for _ in range(_NEEDED.get(goal.kind, 1))]
    drawn.shuffle(things)
    to = {thing: chosen[number % len(chosen)] for number, thing in enumerate(things)}
    return _placed(world, to)


def _placed(world: World, to: dict[str, str]) -> World:
    """The game with things in other receptacles, and in these alone."""
    location = {receptacle: place for place, own in world.receptacles_at.items() for receptacle in own}
    contents = {place: [thing for thing in own if thing not in to] for place, own in world.contents.items()}
    for thing, place in to.items():
        contents[place] = sorted([*contents.get(place, ()), thing])
    lying = {(thing, place) for thing, place in world.lying if thing not in to}
    lying |= {(thing, location[place]) for thing, place in to.items()}
    return replace(world, contents=contents, lying=frozenset(lying))


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
        rules: `varied` plays the games of `train` in which an object is cleaned, heated or cooled under other rules (`Rule`); a skill
            of the task states its rule. All other games are unchanged.
        variants: number of rules for each of these games, one task each.
        moved: number of additional versions of each game of `train`, one task each. In them the objects that the task needs lie in
            receptacles drawn from all those in the room that take them (`move`). Validation games have none.

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
        self._played: tuple[Game, Rule | None, int | None] | None = None
        """The game, its rule and its version."""
        self._engine: FastEngine | None = None
        self._frame: Frame | None = None
        self._task = ""
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
        kind, options = TREATED.get(game.task_type), {"task": game.id}
        task = Task(game.id, ALFWORLD_ENV_ID, options, split=game.split, task_type=game.task_type)
        if self.rules != "varied" or kind is None or game.split != "train":
            return [task]
        tasks = []
        for number in range(self.variants):
            name = f"{game.id}#{number}"
            seed = derive_seed(0, "rule", name)
            receptacles, put = room_and_words(game.path)
            rule = draw_rule(kind, receptacles, seed)
            changed = {**options, "rule": str(rule), "skill": advice(rule, seed, put)}
            tasks.append(replace(task, id=name, options=changed))
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
        version = None if asked.get("moved") is None else check_whole("moved", asked["moved"])
        played = (game, rule, version)
        if played != self._played or self._engine is None:
            self._engine = self._make_engine(*played)
        self._played, self._commands = played, []
        self._frame = self._engine.reset()
        self._task = task_in_words(self._frame.feedback)
        info = self._info()
        if asked.get("walkthrough"):
            if rule is not None or version is not None:
                raise EnvError("A game under another rule, or with moved objects, has no walkthrough.")
            info["walkthrough"] = list(load_game(game.path).walkthrough)
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
        self._engine = self._played = self._frame = None

    def _info(self) -> dict[str, Any]:
        assert self._frame is not None and self._played is not None and self._engine is not None
        game, rule, version = self._played
        return {
            "admissible_commands": list(self._frame.commands),
            "won": self._frame.won,
            "task": self._task,
            "task_type": game.task_type,
            "game": game.id,
            "gamefile": str(game.path),
            "source": game.source,
            "state": self._engine.state(),
            **({} if rule is None else {"rule": str(rule)}),
            **({} if version is None else {"moved": version}),
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
        if self._played is not None:
            self._engine = self._make_engine(*self._played)
            self._engine.reset()
            for command in self._commands:
                self._engine.step(command)


def _check(rules: object = "real", variants: object = 1, moved: object = 0, **others: object) -> None:
    check_choice("rules", rules, RULES)
    check_whole("variants", variants, 1)
    check_whole("moved", moved)
    check_episode(**others)
