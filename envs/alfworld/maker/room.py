"""A furnished room: which objects are in it and where, drawn from a floor plan and the ontology with a seed; and its PDDL.

Receptacles that can be opened are those that the floor plan lists. What it does not list (stove burners, a toaster, holders for
towels) is added from a table, and objects lie where the ontology lets them lie. How many there are and how they spread is set
so that the official games' averages come out.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from skill_ttrl.envs.alfworld.maker.goals import LAMP, Goal
from skill_ttrl.envs.alfworld.maker.ontology import FloorPlan, Ontology, standing

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
