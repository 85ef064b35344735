"""The shortest plan for a game whose whole state is known: what makes and proves a walkthrough.

It sees into closed cupboards, so it is no expert to learn from. All six kinds of goal have the same shape: take one of the
objects that are asked for, perhaps treat it at a tool, bring it to a place. The ways to do so are few, so all are tried.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import permutations

from skill_ttrl.envs.alfworld.world import TOOLS, World
from skill_ttrl.errors import EnvError

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
