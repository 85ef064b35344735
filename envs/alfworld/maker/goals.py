"""Goals of generated games: a task type, an object and a target receptacle, in one of the rooms.

The goals are all combinations that the ontology allows and that make sense by a few rules. No rule names a game; together they leave
the kinds of objects and receptacles that the official games ask for too.
"""

from __future__ import annotations

import functools
import hashlib
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from skill_ttrl.envs.alfworld.maker.ontology import Ontology, read_floor_plan, read_ontology, standing

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
