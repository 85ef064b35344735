"""Generated games: one after another a goal, a room for it, its walkthrough and its files, for users without the official data.

The same seed gives the same games on every machine, and the first games of a series do not depend on its length. They are written in
the layout of the official release, so the official engine reads them as well; next to each lies the `traj_data.json` that the package's
`AlfredTWEnv` requires.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import Any

from skill_ttrl.envs.alfworld.engine import FastEngine
from skill_ttrl.envs.alfworld.game import GAME_FILE, GENERATED_FILE, JSON_FOLDER, TASK_TYPES
from skill_ttrl.envs.alfworld.games import Progress
from skill_ttrl.envs.alfworld.maker.ontology import Ontology, read_floor_plan, read_ontology
from skill_ttrl.envs.alfworld.maker.rooms import Goal, WorldState, furnish, goal_series, write_problem
from skill_ttrl.envs.alfworld.world import TOOLS, World, build_world, read_grammar, read_problem
from skill_ttrl.errors import EnvError
from skill_ttrl.storage.files import cache_folder, made_whole, remove_unfinished, waiting_for

SEED = 0
COUNTS: Mapping[str, int] = {"train": 240, "valid_seen": 60, "valid_unseen": 60}
"""Games of each split that are made where no official ones are given."""
MAX_GAMES = 1_000_000
GENERATOR = 1
"""Changes whenever the same seed gives other games."""


@dataclass(frozen=True, slots=True)
class Generated:
    """One game, not written yet."""

    goal: Goal
    trial: str
    game: Mapping[str, Any]
    """Content of `game.tw-pddl`."""
    trajectory: Mapping[str, Any]
    """Content of `traj_data.json`."""


def generated(split: str, seed: int, task_types: Sequence[str] = TASK_TYPES) -> Iterator[Generated]:
    """Games of one split without end, the types in turn. Each was solved, and played until it was won."""
    ontology = read_ontology()
    series = [_of_type(ontology, split, task_type, seed) for task_type in task_types]
    while True:
        for games in series:
            yield next(games)


def _of_type(ontology: Ontology, split: str, task_type: str, seed: int) -> Iterator[Generated]:
    for goal, before in goal_series(split, task_type, seed):
        rng = random.Random(f"game {seed} {split} {goal.folder} {before}")
        state = furnish(ontology, read_floor_plan(goal.scene), goal, rng)
        if state is None:  # six goals of 16,400: all places that take the thing are of the kind it is to go to
            continue
        yield _make(ontology, state, goal, f"trial_G{seed}_{before + 1:04d}", rng)


def _make(ontology: Ontology, state: WorldState, goal: Goal, trial: str, rng: random.Random) -> Generated:
    problem = write_problem(ontology, state, goal, trial)
    words = rng.choice(ontology.sentences[goal.task_type]).format(
        obj=goal.object.lower(), recep=goal.target.lower(), toggle=goal.target.lower()
    )
    grammar = ontology.grammar.replace("UNKNOWN GOAL", words)
    texts, task = read_grammar(grammar)
    world = build_world(read_problem(problem), texts, task)
    walkthrough = solve(world)
    engine = FastEngine(world)
    won = [engine.reset().won, *(engine.step(command).won for command in walkthrough)]
    if any(won[:-1]) or not won[-1]:
        raise AssertionError(f"{goal.folder} is not won by its walkthrough, or before its end")
    game = {
        "pddl_domain": ontology.domain,
        "grammar": grammar,
        "pddl_problem": problem,
        "solvable": True,
        "walkthrough": list(walkthrough),
    }
    return Generated(goal, trial, game, _trajectory(goal, trial, words))


def _trajectory(goal: Goal, trial: str, words: str) -> dict[str, Any]:
    """Return the `traj_data.json` of a game, as ALFRED has it: only the fields that the package's experts and its game collector read."""
    light = goal.task_type == "look_at_obj_in_light"
    return {
        "task_id": trial,
        "task_type": goal.task_type,
        "pddl_params": {
            "mrecep_target": "",
            "object_sliced": False,
            "object_target": goal.object,
            "parent_target": "" if light else goal.target,
            "toggle_target": goal.target if light else "",
        },
        "scene": {"floor_plan": f"FloorPlan{goal.scene}", "scene_num": goal.scene},
        "turk_annotations": {"anns": [{"high_descs": [], "task_desc": f"{words}."}]},
    }


_TREATMENTS = {"clean": "CleanObject", "heat": "HeatObject", "cool": "CoolObject"}


def solve(world: World) -> tuple[str, ...]:
    """The commands that win a game in the fewest steps, from its start; of equally short plans the first by its words.

    Raises:
        EnvError: nothing that is asked for can be taken, treated and brought where it belongs.
    """
    plans = [tuple(plan.commands) for plan in _PLANS[world.goal.kind](world)]
    if not plans:
        goal = world.goal
        raise EnvError(f"no plan reaches its goal: {goal.kind}, {goal.object_type}, {goal.target_type}")
    return min(plans, key=lambda commands: (len(commands), commands))


class _Plan:
    """Commands from the start of a game on, and what of its state they change."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.commands: list[str] = []
        self._here = world.start
        self._opened = set(world.marks["opened"])
        self._places = {r: place for place, there in world.receptacles_at.items() for r in there}

    def go(self, receptacle: str) -> None:
        if self._places[receptacle] != self._here:
            self._do("GotoLocation", r=receptacle)
            self._here = self._places[receptacle]

    def reach(self, receptacle: str) -> None:
        """Go there, and open it where it is shut."""
        self.go(receptacle)
        if receptacle in self.world.openable and receptacle not in self._opened:
            self._do("OpenObject", r=receptacle)
            self._opened.add(receptacle)

    def take(self, thing: str, receptacle: str) -> None:
        self.reach(receptacle)
        self._do("PickupObject", o=thing, r=receptacle)

    def treat(self, action: str, thing: str, tool: str) -> None:
        """Clean, heat or cool; none of them asks for an open door."""
        self.go(tool)
        self._do(action, o=thing, r=tool)

    def put(self, thing: str, receptacle: str) -> None:
        self.reach(receptacle)
        self._do("PutObject", o=thing, r=receptacle)

    def use(self, thing: str, receptacle: str) -> None:
        self.go(receptacle)
        self._do("ToggleObject", o=thing)

    def _do(self, action: str, /, **objects: str) -> None:
        self.commands.append(self.world.command(action, **objects)[0])


def _place(world: World) -> Iterator[_Plan]:
    """Bring one thing; where its kind of goal says so, treat it first."""
    treatment, wanted = _TREATMENTS.get(world.goal.kind), _wanted(world)
    for thing, source in wanted:
        for target in _targets(world, thing):
            if treatment is None and target != source:
                plan = _Plan(world)
                plan.take(thing, source)
                plan.put(thing, target)
                yield plan
            for tool in _tools(world, treatment, thing):
                plan = _Plan(world)
                plan.take(thing, source)
                plan.treat(treatment or "", thing, tool)
                if target == source or (thing, target) not in wanted:  # some begin in two receptacles, and leave one
                    plan.put(thing, target)
                yield plan


def _two(world: World) -> Iterator[_Plan]:
    """Bring as many as are missing, to one place."""
    wanted = _wanted(world)
    for target in _targets(world, None):
        there = {thing for thing, source in wanted if source == target}
        others = [(thing, source) for thing, source in wanted if thing not in there and world.takes(target, thing)]
        for chosen in permutations(others, max(0, 2 - len(there))):
            if len({thing for thing, _ in chosen}) == len(chosen):
                plan = _Plan(world)
                for thing, source in chosen:
                    plan.take(thing, source)
                    plan.put(thing, target)
                yield plan


def _light(world: World) -> Iterator[_Plan]:
    """Take one thing to a lamp."""
    for thing, source in _wanted(world):
        for lamp, place in _things(world, world.goal.target_type, "toggleable"):
            plan = _Plan(world)
            plan.take(thing, source)
            plan.use(lamp, place)
            yield plan


_PLANS = {"place": _place, "clean": _place, "heat": _place, "cool": _place, "two": _two, "light": _light}


def _wanted(world: World) -> Sequence[tuple[str, str]]:
    return _things(world, world.goal.object_type, "pickupable")


def _things(world: World, kind: str, ability: str) -> Sequence[tuple[str, str]]:
    """(thing, receptacle that it is in) for all objects of a kind with this ability."""
    return [
        (thing, receptacle)
        for receptacle in world.in_sight
        for thing in world.contents.get(receptacle, ())
        if f"{kind}type" in world.kinds[thing] and thing in world.able[ability]
    ]


def _targets(world: World, thing: str | None) -> Iterator[str]:
    """Receptacles of the goal's kind that take `thing`, or any."""
    for receptacle in world.in_sight:
        right = f"{world.goal.target_type}type" in world.kinds[receptacle]
        if right and (thing is None or world.takes(receptacle, thing)):
            yield receptacle


def _tools(world: World, treatment: str | None, thing: str) -> Iterator[str]:
    if treatment is None:
        return
    ability, kinds = TOOLS[treatment]
    if thing in world.able[ability]:
        yield from (receptacle for receptacle in world.in_sight if world.kinds[receptacle] & kinds)


def counts(train: int) -> dict[str, int]:
    """Games of each split of a default series of `train` training games: a tenth of them in each of the others, at least 60."""
    return {split: train if split == "train" else max(count, train // 10) for split, count in COUNTS.items()}


def ensure_generated(progress: Progress | None = None, train: int | None = None) -> Path:
    """Return the folder of the default games; the first call generates them, in seconds, and stores them in the user's cache.

    The folder appears with all splits or not at all, even if two processes start at once. By default it has 240 training games and 60 in
    each of the other splits, about 25 MB. `XDG_CACHE_HOME` moves the cache.

    Args:
        progress: called with (games done, games in total) while games are generated.
        train: number of training games, see `counts` for the other splits; None: 240.

    Returns:
        A folder with `json_2.1.1/` and `generated.json`.

    Raises:
        EnvError: `train` is out of range, the package alfworld is not installed, or the cache cannot be written.
    """
    cache = cache_folder("alfworld")
    train = COUNTS["train"] if train is None else train
    if not 1 <= train <= MAX_GAMES:
        raise EnvError(f"Choose from 1 to {MAX_GAMES:,} games, found {train:,}.")
    size = "" if train == COUNTS["train"] else f"-{train}"
    root = cache / f"generated-{GENERATOR}-alfworld-{read_ontology().version}{size}"
    if (root / GENERATED_FILE).is_file():
        return root
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with waiting_for(cache / ".lock"):
            if not (root / GENERATED_FILE).is_file():
                remove_unfinished(cache)
                with made_whole(root) as beside:
                    number, total = itertools.count(1), sum(counts(train).values())
                    for split, count in counts(train).items():
                        write_games(
                            beside, split, count, progress=progress and (lambda *_: progress(next(number), total))
                        )
    except OSError as error:
        raise EnvError(
            f"The generated games cannot be stored in {cache}: {error.strerror or error}. Free some space, or set XDG_CACHE_HOME "
            "to a folder that can be written."
        ) from error
    return root


def write_games(
    root: Path,
    split: str,
    count: int,
    seed: int = SEED,
    task_types: Sequence[str] = TASK_TYPES,
    progress: Progress | None = None,
) -> None:
    """Write the first games of a split into `json_2.1.1/SPLIT` of a folder; `generated.json` there says that they are generated.

    Args:
        root: a folder, made if it is not there.
        split: determines the rooms, and for `train` and `valid_seen`, which share rooms, the goals in them.
        count: number of games; the types take turns.
        seed: seed of all random choices.
        task_types: only these.
        progress: called after every game with (games done, `count`).
    """
    about = {"generator": GENERATOR, "alfworld": read_ontology().version}
    root.mkdir(parents=True, exist_ok=True)
    (root / GENERATED_FILE).write_text(json.dumps(about) + "\n", encoding="utf-8")
    for number, made in enumerate(itertools.islice(generated(split, seed, task_types), count), 1):
        folder = root / JSON_FOLDER / split / made.goal.folder / made.trial
        folder.mkdir(parents=True)
        for name, content in ((GAME_FILE, made.game), ("traj_data.json", made.trajectory)):
            (folder / name).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        if progress is not None:
            progress(number, count)
