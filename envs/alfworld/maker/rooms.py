"""The parts of a generated game: a goal, and a furnished room with it as a PDDL problem.

The goals are all combinations that the ontology allows and that make sense by a few rules. No rule names a game; together they leave
the kinds of objects and receptacles that the official games ask for too.

Which objects are in a room and where is drawn from its floor plan and the ontology with a seed. Receptacles that can be opened are
those that the floor plan lists. What it does not list (stove burners, a toaster, holders for towels) is added from a table, and
objects lie where the ontology lets them lie. How many there are and how they spread is set so that the official games' averages come
out.
"""

from __future__ import annotations

import functools
import hashlib
import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from skill_ttrl.envs.alfworld.maker.ontology import FloorPlan, Ontology, read_floor_plan, read_ontology, standing

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
    if split == "valid_unseen":
        return True
    drawn = hashlib.blake2b(goal.folder.encode(), digest_size=2).digest()
    return (int.from_bytes(drawn, "big") % 5 == 0) == (split == "valid_seen")


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
    formula = ontology.goals[goal.task_type].format(obj=goal.object, recep=goal.target, toggle=goal.target)
    return "\n".join(
        (
            f"(define (problem {name})",
            "(:domain alfred)",
            "(:objects",
            *(f"    {line}" for line in declared),
            ")",
            "(:init",
            *(f"    ({line})" for line in facts),
            ")",
            formula.strip("\n"),
            "",
        )
    )
