"""Generated ALFWorld games for users without the official data: the ontology of the package alfworld, goals, rooms, walkthroughs, files.

The ontology is read from the files of the installed distribution and never through `import alfworld`, which creates a folder in the user's
home and sets `$ALFWORLD_DATA`. The files need none of the package's dependencies: `pip install --no-deps alfworld==0.4.2` installs them
in a second and without a C++ compiler.

The goals are all combinations that the ontology allows and that make sense by a few rules. No rule names a game; together they leave
the kinds of objects and receptacles that the official games ask for too. Which objects are in a room and where is drawn from its floor
plan and the ontology with a seed. Receptacles that can be opened are those that the floor plan lists. What it does not list (stove
burners, a toaster, holders for towels) is added from a table, and objects lie where the ontology lets them lie. How many there are and
how they spread is set so that the official games' averages come out.

The same seed gives the same games on every machine, and the first games of a series do not depend on its length. They are written in
the layout of the official release, so the official engine reads them as well.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import itertools
import json
import random
import runpy
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import Any

from skill_ttrl.envs.alfworld.games import (
    DOMAINS,
    GAME_FILE,
    GENERATED_FILE,
    JSON_FOLDER,
    TASK_TYPES,
    Progress,
    domain_hash,
)
from skill_ttrl.envs.alfworld.world import ACTIONS, TOOLS, World, build_world, read_grammar, read_problem
from skill_ttrl.errors import EnvError
from skill_ttrl.storage.files import cache_folder, made_once

PACKAGE = "alfworld"
INSTALL = (
    "Games are made from files of the package alfworld. Install them with: pip install --no-deps alfworld==0.4.2 (in a second, "
    "without a compiler), or the whole package, in a checkout, with: pip install -e '.[alfworld]'. The official games need neither: "
    "set ALFWORLD_DATA to the folder that holds json_2.1.1/."
)


@dataclass(frozen=True, slots=True)
class Ontology:
    """Kinds are written as in the package: "Apple", "CounterTop"."""

    version: str
    """Of the package."""
    domain: str
    """PDDL of the actions."""
    grammar: str
    """Texts, with UNKNOWN GOAL where the task is named."""
    goals: Mapping[str, str]
    """Task type → PDDL of its goal, with the slots `{obj}`, `{recep}`, `{toggle}`."""
    sentences: Mapping[str, Sequence[str]]
    """Task type → the task in words, two ways, with the same slots."""
    rooms: Mapping[str, frozenset[str]]
    """Task type → rooms that it is played in: "Kitchen", "LivingRoom", "Bedroom", "Bathroom"."""
    objects: Sequence[str]
    """Every kind of object, those that hold others too."""
    receptacles: Sequence[str]
    """Every kind of receptacle that stays where it is."""
    movable: frozenset[str]
    """Objects that hold others."""
    fits: Mapping[str, frozenset[str]]
    """Receptacle → kinds of object that it takes."""
    portable: frozenset[str]
    """Kinds of object that some receptacle takes."""
    able: Mapping[str, frozenset[str]]
    """`Heatable`, `Coolable`, `Cleanable`, `Sliceable`, `Toggleable` → kinds of object."""
    openable: frozenset[str]
    """Kinds of receptacle with a door or a lid."""
    scenes: Mapping[int, str]
    """Number of each floor plan → its room."""
    test_scenes: frozenset[int]
    """Floor plans that are kept for what is to be unseen."""


@dataclass(frozen=True, slots=True)
class FloorPlan:
    """One of the 120 rooms."""

    scene: int
    kinds: frozenset[str]
    """Kinds of things that are in it."""
    receptacles: Mapping[str, str]
    """PDDL id of each receptacle that can be reached, sorted → its kind."""


@functools.cache
def read_ontology() -> Ontology:
    """Read the ontology from the installed package, once per process; takes about 10 ms.

    Raises:
        EnvError: the package is not installed, or is a release in which these files differ.
    """
    folder, version = _folder()
    try:
        # Code of the package, which importing would run as well.
        constants, goals = (runpy.run_path(f"{folder}/gen/{name}") for name in ("constants.py", "goal_library.py"))
        domain, grammar = (
            (folder / "data" / name).read_text(encoding="utf-8") for name in ("alfred.pddl", "alfred.twl2")
        )
        fixed = constants["RECEPTACLES"] - constants["MOVABLE_RECEPTACLES_SET"]
        library = {task: goals["gdict"][task] for task in TASK_TYPES}
        ontology = Ontology(
            version=version,
            domain=domain,
            grammar=grammar,
            goals={task: entry["pddl"].replace("#", "-") for task, entry in library.items()},
            sentences={task: tuple(entry["templates"]) for task, entry in library.items()},
            rooms={task: frozenset(constants["GOALS_VALID"][task]) for task in TASK_TYPES},
            objects=sorted(set(constants["OBJECTS"]) - fixed),
            receptacles=sorted(fixed),
            movable=frozenset(constants["MOVABLE_RECEPTACLES_SET"]),
            fits={kind: frozenset(own) for kind, own in sorted(constants["VAL_RECEPTACLE_OBJECTS"].items())},
            portable=frozenset().union(*constants["VAL_RECEPTACLE_OBJECTS"].values()) & set(constants["OBJECTS"]),
            able={name: frozenset(own) for name, own in sorted(constants["VAL_ACTION_OBJECTS"].items())},
            openable=frozenset(constants["OPENABLE_CLASS_LIST"]),
            scenes={n: room for room, numbers in sorted(constants["SCENE_TYPE"].items()) for n in numbers},
            test_scenes=frozenset(constants["TEST_SCENE_NUMBERS"]),
        )
    except (OSError, KeyError, AttributeError, TypeError) as error:
        raise EnvError(
            f"The files of {PACKAGE} {version} in {folder} are not the expected ones "
            f"({type(error).__name__}: {error}). {INSTALL}"
        ) from error
    if domain_hash(domain) not in DOMAINS:
        raise EnvError(
            f"{folder / 'data' / 'alfred.pddl'} of {PACKAGE} {version} is not the expected domain. {INSTALL}"
        )
    return ontology


@functools.cache
def read_floor_plan(scene: int) -> FloorPlan:
    """One room; about 0.2 ms.

    Raises:
        EnvError: there is none of this number, or its files cannot be read.
    """
    folder, version = _folder()
    try:
        kinds, poses = (
            json.loads((folder / "gen" / "layouts" / f"FloorPlan{scene}-{part}.json").read_text(encoding="utf-8"))
            for part in ("objects", "openable")
        )
    except (OSError, ValueError) as error:
        raise EnvError(f"{PACKAGE} {version} in {folder} has no floor plan {scene}: {error}. {INSTALL}") from error
    return FloorPlan(scene, frozenset(kinds), {_mangled(name): _kind(name) for name in sorted(poses, key=_mangled)})


def standing(ontology: Ontology, plan: FloorPlan) -> frozenset[str]:
    """Kinds of receptacle that a room has: those that the floor plan places, and of those that it only names the ones without
    a door. Where the others would be nobody knows.
    """
    named = plan.kinds & set(ontology.receptacles)
    return frozenset(plan.receptacles.values()) | (named - ontology.openable)


def _folder() -> tuple[Path, str]:
    """Where the package's files are, and its version."""
    try:
        distribution = importlib.metadata.distribution(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        raise EnvError(f"The package {PACKAGE} is not installed. {INSTALL}") from None
    return Path(str(distribution.locate_file(PACKAGE))), distribution.version


def _mangled(name: str) -> str:
    """`Cabinet|+00.68|+00.50|-02.20` as it stands in PDDL, and as ALFWorld reads it back."""
    for sign, word in (("|", "_bar_"), ("-", "_minus_"), ("+", "_plus_"), (".", "_dot_")):
        name = name.replace(sign, word)
    return name


def _kind(name: str) -> str:
    """`Sink|-01.90|+00.97|-01.50|SinkBasin` is a SinkBasin; others begin with their kind."""
    parts = name.split("|")
    return parts[-1] if parts[-1].endswith("Basin") else parts[0]


# Goals and rooms.

OFFICIAL_UNSEEN = frozenset({10, 219, 308, 424})
"""The rooms of the official valid_unseen. The package's own list counts them among the training rooms; no generated game is
played there, so that they stay unseen for who trains on generated games and measures on official ones."""
TREATED = {
    "pick_clean_then_place_in_recep": ("Cleanable", "SinkBasin"),
    "pick_heat_then_place_in_recep": ("Heatable", "Microwave"),
    "pick_cool_then_place_in_recep": ("Coolable", "Fridge"),
}
"""Task type → what the object must allow, and where it is done; that place is not the goal."""
LAMP = "DeskLamp"
"""The lamp of `look_at_obj_in_light`. Floor lamps stand in no receptacle, and the goal wants the lamp in one."""
ROOM_SHARES: Mapping[str, Mapping[str, int]] = {
    "pick_and_place_simple": {"Bathroom": 3, "Bedroom": 3, "LivingRoom": 3, "Kitchen": 1},
    "pick_two_obj_and_place": {"Bathroom": 3, "Bedroom": 3, "LivingRoom": 3, "Kitchen": 1},
    "look_at_obj_in_light": {"Bedroom": 5, "LivingRoom": 1},
    "pick_clean_then_place_in_recep": {"Kitchen": 3, "Bathroom": 1},
}
"""How many games of a type are played in each room, in proportion, as in the official games. Others have one room."""
_NEVER_ASKED = frozenset(
    "BaseballBat BasketBall TennisRacket Plunger PaperTowel ToiletPaperRoll Towel ScrubBrush TeddyBear".split()
)
"""They stand on floors, or have one place only."""
_NO_GOAL = frozenset("BathtubBasin SinkBasin HandTowelHolder TowelHolder LaundryHamper TVStand Toaster".split())
"""Places where nothing is brought to stay."""
_HOLDS_ONE = frozenset("CoffeeMachine StoveBurner ToiletPaperHanger".split())
_AT_HOME = frozenset({("Bed", "Pillow")})
"""(place, object) where the object is anyway."""


@dataclass(frozen=True, slots=True, order=True)
class Goal:
    """Goal of one game."""

    task_type: str
    object: str
    """Kind of the object that is carried."""
    target: str
    """Kind of the receptacle that it ends in; for `look_at_obj_in_light` the lamp."""
    scene: int

    @property
    def folder(self) -> str:
        """Name of the task's folder, as ALFRED has it."""
        return f"{self.task_type}-{self.object}-None-{self.target}-{self.scene}"


def goal_series(split: str, task_type: str, seed: int) -> Iterator[tuple[Goal, int]]:
    """Goals of one type in the order of a seed, without end, and how often each came before.

    Rooms come in the proportions of `ROOM_SHARES`; within one no goal comes again before all others have come. "train" and
    "valid_seen" share rooms and no goal, whatever their seeds: the name of a goal says which of both it belongs to.
    """
    by_room = goals_by_room(split, task_type)
    shares = ROOM_SHARES.get(task_type, {})
    turns = [room for room in by_room for _ in range(shares.get(room, 1))]
    rng = random.Random(f"errands {seed} {split} {task_type}")
    rounds: dict[str, list[Goal]] = defaultdict(list)
    came: dict[Goal, int] = defaultdict(int)
    while True:
        for room in rng.sample(turns, len(turns)):
            if not rounds[room]:
                rounds[room] = rng.sample(by_room[room], len(by_room[room]))
            goal = rounds[room].pop()
            yield goal, came[goal]
            came[goal] += 1


@functools.cache
def goals_by_room(split: str, task_type: str) -> Mapping[str, Sequence[Goal]]:
    """Room → its goals, in order; rooms without one are left out."""
    ontology = read_ontology()
    found: dict[str, list[Goal]] = defaultdict(list)
    for scene in scenes_of(ontology, split):
        room = ontology.scenes[scene]
        if room in ontology.rooms[task_type]:
            found[room] += sorted(each for each in _possible(ontology, task_type, scene) if _belongs(each, split))
    return {room: own for room, own in sorted(found.items()) if own}


def scenes_of(ontology: Ontology, split: str) -> list[int]:
    """The rooms that a split is played in, in order."""
    if split == "valid_unseen":
        return sorted(ontology.test_scenes)
    return sorted(set(ontology.scenes) - ontology.test_scenes - OFFICIAL_UNSEEN)


def _belongs(goal: Goal, split: str) -> bool:
    drawn = hashlib.blake2b(goal.folder.encode(), digest_size=2).digest()
    return split == "valid_unseen" or (int.from_bytes(drawn, "big") % 5 == 0) == (split == "valid_seen")


def _possible(ontology: Ontology, task_type: str, scene: int) -> Iterator[Goal]:
    """Yield the possible goals of a task type in one room."""
    plan = read_floor_plan(scene)
    places = standing(ontology, plan)
    able, tool = TREATED.get(task_type, (None, None))
    if tool is not None and tool not in places:
        return
    objects = (plan.kinds & ontology.portable) - _NEVER_ASKED
    if able is not None:
        objects &= ontology.able[able]
    if task_type == "look_at_obj_in_light":
        if LAMP in plan.kinds:
            yield from (Goal(task_type, thing, LAMP, scene) for thing in objects)
        return
    for target in places - _NO_GOAL - {tool}:
        for thing in objects & ontology.fits[target]:
            if _makes_sense(ontology, task_type, thing, target):
                yield Goal(task_type, thing, target, scene)


def _makes_sense(ontology: Ontology, task_type: str, thing: str, target: str) -> bool:
    if (target, thing) in _AT_HOME:
        return False
    if target == "GarbageCan":  # food is not thrown away, and nothing is that was just cleaned or heated
        return task_type not in TREATED and thing not in ontology.able["Sliceable"]
    if task_type == "pick_two_obj_and_place":
        return target not in _HOLDS_ONE
    return target != "CoffeeMachine" or task_type in TREATED


UNLISTED: Mapping[str, Sequence[int]] = {"StoveBurner": (4,), "HandTowelHolder": (1, 2), "TowelHolder": (1, 2)}
"""Receptacle that no floor plan lists but names among its objects → how many there may be; of all others one."""
SPREAD: Mapping[str, float] = {
    "ArmChair": 0.8, "BathtubBasin": 1.3, "Bed": 4.0, "Cabinet": 0.45, "Cart": 2.7, "CoffeeMachine": 0.4, "CoffeeTable": 4.4,
    "CounterTop": 6.5, "Desk": 6.3, "DiningTable": 9.0, "Drawer": 0.5, "Dresser": 5.0, "Fridge": 4.5, "GarbageCan": 0.7,
    "HandTowelHolder": 4.0, "LaundryHamper": 0.1, "Microwave": 1.0, "Ottoman": 1.6, "Safe": 0.9, "Shelf": 1.1, "SideTable": 2.8,
    "SinkBasin": 1.5, "Sofa": 2.5, "StoveBurner": 4.0, "TVStand": 3.4, "Toaster": 0.1, "Toilet": 2.6, "ToiletPaperHanger": 0.3,
    "TowelHolder": 1.0,
}  # fmt: skip
"""Receptacle → objects that usually lie in it: the weight with which one more does."""
HOLDS: Mapping[str, int] = {
    "CoffeeMachine": 1, "HandTowelHolder": 1, "StoveBurner": 1, "ToiletPaperHanger": 1, "TowelHolder": 1,
    "Cabinet": 4, "Drawer": 4, "Microwave": 4, "Safe": 4,
}  # fmt: skip
"""Receptacle → most objects in it at the start; for others there is no limit."""
SURFACES = ("SideTable", "Desk", "Dresser", "TVStand", "DiningTable", "CoffeeTable", "CounterTop", "Shelf")
FIXED: Mapping[str, Sequence[str]] = {
    "DeskLamp": ("SideTable", "Desk", "Dresser", "Shelf", *SURFACES),
    "HousePlant": ("CounterTop", "SideTable", "DiningTable", "CoffeeTable", *SURFACES),
    "Television": ("TVStand", "Dresser", *SURFACES),
    "PaperTowelRoll": ("CounterTop", "DiningTable", *SURFACES),
    "TeddyBear": ("Bed",),
}
"""Things to be seen and not to be taken → where they stand, the first kind that the room has. The official games let paper
towels and teddy bears be taken, but no receptacle takes them back: whoever holds one has lost."""
FEW = frozenset("Box Bread HandTowel Laptop Pan Pillow Pot Towel".split())
_NOT_INDOORS = frozenset("BaseballBat BasketBall Boots Footstool PaperTowel Plunger ScrubBrush TennisRacket".split())
"""Named in floor plans; they stand on the floor, where no command reaches."""
HIDDEN = 0.1
"""Share of games in which all objects of the wanted kind begin behind doors, where some such place takes them."""

_START = "loc_bar_start"
"""Where the agent begins. No receptacle is there, so the introduction lists the room."""
_ABILITIES = ("Cleanable", "Heatable", "Coolable", "Toggleable", "Sliceable")


@dataclass(frozen=True, slots=True)
class WorldState:
    """Where everything is. Ids are PDDL's; their order is the order of all texts."""

    receptacles: Mapping[str, str]
    """Id → kind."""
    openable: frozenset[str]
    objects: Mapping[str, str]
    """Id → kind."""
    places: Mapping[str, str]
    """Thing → the receptacle that it is in."""


def furnish(ontology: Ontology, plan: FloorPlan, goal: Goal, rng: random.Random) -> WorldState | None:
    """A room in which a goal can be done and is not done yet; None where this draw has no place for what is asked for."""
    receptacles = dict(sorted((*plan.receptacles.items(), *_unlisted(ontology, plan, rng))))
    openable = frozenset(r for r, kind in plan.receptacles.items() if kind in ontology.openable)
    places: dict[str, str] = {}
    objects: dict[str, str] = {}
    load: Counter[str] = Counter()
    hidden = rng.random() < HIDDEN
    for kind, count in _stock(ontology, plan, goal, rng):
        open_to = [r for r, own in receptacles.items() if kind in ontology.fits.get(own, ())]
        if kind in FIXED:
            first = next((own for own in FIXED[kind] if own in receptacles.values()), None)
            open_to = [r for r, own in receptacles.items() if own == first]
        if kind == goal.object:
            open_to = _away_from_goal(receptacles, openable, open_to, goal, hidden)
        for number in range(1, count + 1):
            free = [r for r in open_to if load[r] < HOLDS.get(receptacles[r], 99)]
            if not free:
                break
            place = rng.choices(free, [SPREAD.get(receptacles[r], 1.0) for r in free])[0]
            thing = f"{kind}_bar_{number}"
            objects[thing], places[thing] = kind, place
            load[place] += 1
    if sum(kind == goal.object for kind in objects.values()) < _needed(goal):
        return None
    return WorldState(receptacles, openable, objects, places)


def _unlisted(ontology: Ontology, plan: FloorPlan, rng: random.Random) -> Iterator[tuple[str, str]]:
    """Receptacles that the room has and the floor plan places none of."""
    for kind in sorted(standing(ontology, plan) - set(plan.receptacles.values())):
        for number in range(1, rng.choice(UNLISTED.get(kind, (1,))) + 1):
            basin = kind.removesuffix("Basin")
            yield (f"{kind}_bar_{number}" if basin == kind else f"{basin}_bar_{number}_bar_{kind}"), kind


def _stock(ontology: Ontology, plan: FloorPlan, goal: Goal, rng: random.Random) -> Iterator[tuple[str, int]]:
    """Kinds of objects in the room, the wanted one first, and how many of each; up to three, as ALFRED places them."""
    kinds = sorted((plan.kinds & (ontology.portable | set(FIXED))) - _NOT_INDOORS - {goal.object})
    for kind in (goal.object, *kinds):
        if kind in FIXED:
            yield kind, 1
        else:
            count = rng.choices((1, 2, 3), (6, 3, 1) if kind in FEW else (4, 3, 3))[0]
            yield kind, max(count, _needed(goal)) if kind == goal.object else count


def _needed(goal: Goal) -> int:
    return 2 if goal.task_type == "pick_two_obj_and_place" else 1


def _away_from_goal(
    receptacles: Mapping[str, str], openable: frozenset[str], open_to: Sequence[str], goal: Goal, hidden: bool
) -> list[str]:
    """Where a wanted thing may begin: not where it is to end. What is looked at under a lamp lies in the open, as in the
    official games.
    """
    away = [r for r in open_to if receptacles[r] != goal.target]
    if goal.target == LAMP:
        return [r for r in away if r not in openable]
    return ([r for r in away if r in openable] if hidden else away) or away


def write_problem(ontology: Ontology, state: WorldState, goal: Goal, name: str) -> str:
    """A room and a goal in it as a PDDL problem, every receptacle at a location of its own.

    Every kind of the ontology is declared, in this room or not: the domain and the goal name some.
    """
    spots = {receptacle: f"loc_bar_{number}" for number, receptacle in enumerate(state.receptacles, 1)}
    able = [(name.lower(), ontology.able[name]) for name in _ABILITIES]
    objects, receptacles = state.objects.items(), state.receptacles.items()
    declared = [
        "agent1 - agent",
        *(f"{kind}Type - otype" for kind in ontology.objects),
        *(f"{kind}Type - rtype" for kind in ontology.receptacles),
        *(f"{thing} - object" for thing in state.objects),
        *(f"{receptacle} - receptacle" for receptacle in state.receptacles),
        *(f"{spot} - location" for spot in (*spots.values(), _START)),
    ]
    facts = [
        *(f"receptacleType {r} {kind}Type" for r, kind in receptacles),
        *(f"objectType {thing} {kind}Type" for thing, kind in objects),
        *(
            f"canContain {outer}Type {inner}Type"
            for outer in sorted(set(state.receptacles.values()))
            for inner in sorted(ontology.fits.get(outer, frozenset()) & set(state.objects.values()))
        ),
        *(f"pickupable {thing}" for thing, kind in objects if kind in ontology.portable),
        *(f"isReceptacleObject {thing}" for thing, kind in objects if kind in ontology.movable),
        *(f"openable {r}" for r in sorted(state.openable)),
        f"atLocation agent1 {_START}",
        *(f"{ability} {thing}" for ability, kinds in able for thing, kind in objects if kind in kinds),
        *(f"inReceptacle {thing} {r}" for thing, r in state.places.items()),
        *(f"receptacleAtLocation {r} {spot}" for r, spot in spots.items()),
        *(f"objectAtLocation {thing} {spots[r]}" for thing, r in state.places.items()),
    ]
    formula = ontology.goals[goal.task_type].format(obj=goal.object, recep=goal.target, toggle=goal.target).strip("\n")
    things, init = "\n    ".join(declared), "\n    ".join(f"({fact})" for fact in facts)
    head = f"(define (problem {name})\n(:domain alfred)\n"
    return f"{head}(:objects\n    {things}\n)\n(:init\n    {init}\n)\n{formula}\n"


# Games.

SEED = 0
COUNTS: Mapping[str, int] = {"train": 240, "valid_seen": 60, "valid_unseen": 60}
"""Games of each split that are made where no official ones are given."""
GENERATOR = 1
"""Changes whenever the same seed gives other games."""


def _of_type(ontology: Ontology, split: str, task_type: str, seed: int) -> Iterator[tuple[str, dict[str, Any]]]:
    for goal, before in goal_series(split, task_type, seed):
        rng, trial = random.Random(f"game {seed} {split} {goal.folder} {before}"), f"trial_G{seed}_{before + 1:04d}"
        state = furnish(ontology, read_floor_plan(goal.scene), goal, rng)
        if state is None:  # six goals of 16,400: all places that take the thing are of the kind it is to go to
            continue
        problem = write_problem(ontology, state, goal, trial)
        words = rng.choice(ontology.sentences[goal.task_type]).format(
            obj=goal.object.lower(), recep=goal.target.lower(), toggle=goal.target.lower()
        )
        grammar = ontology.grammar.replace("UNKNOWN GOAL", words)
        texts, task = read_grammar(grammar)
        world = build_world(read_problem(problem), texts, task)
        game = {
            "pddl_domain": ontology.domain,
            "grammar": grammar,
            "pddl_problem": problem,
            "solvable": True,
            "walkthrough": list(solve(world)),
        }
        yield f"{goal.folder}/{trial}", game


Move = tuple[str, str, str]
"""An action, the object that it is done to, and the receptacle where."""


def solve(world: World) -> tuple[str, ...]:
    """The commands that win a game in the fewest steps, from its start; of equally short plans the first by its words.

    Raises:
        EnvError: nothing that is asked for can be taken, treated and brought where it belongs.
    """
    plans = [_commands(world, moves) for moves in _PLANS[world.goal.kind](world)]
    if not plans:
        goal = world.goal
        raise EnvError(f"no plan reaches its goal: {goal.kind}, {goal.object_type}, {goal.target_type}")
    return min(plans, key=lambda commands: (len(commands), commands))


def _commands(world: World, moves: Sequence[Move]) -> tuple[str, ...]:
    """The commands of a plan: each move goes to its receptacle, and opens it where it takes from it or puts into it."""
    here, opened = world.start, set(world.marks["opened"])
    places = {r: place for place, there in world.receptacles_at.items() for r in there}
    found = []
    for action, thing, receptacle in moves:
        if places[receptacle] != here:
            found.append(world.command("GotoLocation", r=receptacle)[0])
            here = places[receptacle]
        reaches = action in ("PickupObject", "PutObject")  # a treatment asks for no open door
        if reaches and receptacle in world.openable and receptacle not in opened:
            found.append(world.command("OpenObject", r=receptacle)[0])
            opened.add(receptacle)
        found.append(world.command(action, o=thing, r=receptacle)[0])
    return tuple(found)


def _place(world: World) -> Iterator[Sequence[Move]]:
    """Bring one thing; where its kind of goal says so, treat it first."""
    treatment, wanted = ACTIONS.get(world.goal.kind), _wanted(world)
    for thing, source in wanted:
        take: Move = ("PickupObject", thing, source)
        for target in _targets(world, thing):
            put: Move = ("PutObject", thing, target)
            if treatment is None:
                if target != source:
                    yield take, put
                continue
            ends = target != source and (thing, target) in wanted  # some begin in two receptacles, and leave one
            for tool in _tools(world, treatment, thing):
                yield (take, (treatment, thing, tool), *(() if ends else (put,)))


def _two(world: World) -> Iterator[Sequence[Move]]:
    """Bring as many as are missing, to one place."""
    wanted = _wanted(world)
    for target in _targets(world, None):
        there = {thing for thing, source in wanted if source == target}
        others = [(thing, source) for thing, source in wanted if thing not in there and world.takes(target, thing)]
        for chosen in permutations(others, max(0, 2 - len(there))):
            if len({thing for thing, _ in chosen}) == len(chosen):
                ways = ((("PickupObject", thing, source), ("PutObject", thing, target)) for thing, source in chosen)
                yield [move for way in ways for move in way]


def _light(world: World) -> Iterator[Sequence[Move]]:
    """Take one thing to a lamp."""
    for thing, source in _wanted(world):
        for lamp, place in _things(world, world.goal.target_type, "toggleable"):
            yield ("PickupObject", thing, source), ("ToggleObject", lamp, place)


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


def _tools(world: World, treatment: str, thing: str) -> list[str]:
    ability, kinds = TOOLS[treatment]
    able = thing in world.able[ability]
    return [receptacle for receptacle in world.in_sight if able and world.kinds[receptacle] & kinds]


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
        EnvError: the package alfworld is not installed, or the cache cannot be written.
    """
    cache = cache_folder("alfworld")
    train = COUNTS["train"] if train is None else train
    size = "" if train == COUNTS["train"] else f"-{train}"
    root = cache / f"generated-{GENERATOR}-alfworld-{read_ontology().version}{size}"

    def make(folder: Path) -> None:
        number, total = itertools.count(1), sum(counts(train).values())
        for split, count in counts(train).items():
            write_games(folder, split, count, progress=progress and (lambda *_: progress(next(number), total)))

    try:
        return made_once(root, make)
    except OSError as error:
        raise EnvError(
            f"The generated games cannot be stored in {cache}: {error.strerror or error}. Free some space, or set XDG_CACHE_HOME "
            "to a folder that can be written."
        ) from error


def write_games(root: Path, split: str, count: int, seed: int = SEED, progress: Progress | None = None) -> None:
    """Write the first games of a split into `json_2.1.1/SPLIT` of a folder; `generated.json` there says that they are generated.

    Each was solved, and played until it was won.

    Args:
        root: a folder, made if it is not there.
        split: determines the rooms, and for `train` and `valid_seen`, which share rooms, the goals in them.
        count: number of games; the types take turns.
        seed: seed of all random choices.
        progress: called after every game with (games done, `count`).
    """
    ontology = read_ontology()
    about = {"generator": GENERATOR, "alfworld": ontology.version}
    root.mkdir(parents=True, exist_ok=True)
    (root / GENERATED_FILE).write_text(json.dumps(about) + "\n", encoding="utf-8")
    turns = itertools.cycle([_of_type(ontology, split, task_type, seed) for task_type in TASK_TYPES])
    for number, (name, game) in enumerate(map(next, itertools.islice(turns, count)), 1):
        folder = root / JSON_FOLDER / split / name
        folder.mkdir(parents=True)
        (folder / GAME_FILE).write_text(json.dumps(game, indent=1) + "\n", encoding="utf-8")
        if progress is not None:
            progress(number, count)
