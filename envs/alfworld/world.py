"""Constant data of a game, laid out for the engine and shared by all episodes of the game."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from skill_ttrl.envs.alfworld.grammar import Texts
from skill_ttrl.envs.alfworld.problem import Goal, Problem

Rule = tuple[str, ...]
"""An action's name in the domain, and the ids that it is about."""
_NONE: frozenset[str] = frozenset()
KNIVES = frozenset({"knifetype", "butterknifetype"})
TOOLS = {
    "CleanObject": ("cleanable", frozenset({"sinktype", "sinkbasintype"})),
    "HeatObject": ("heatable", frozenset({"microwavetype"})),
    "CoolObject": ("coolable", frozenset({"fridgetype"})),
}
"""Action → what the object must be, and the types of receptacle that do it."""
_ABILITIES = "pickupable cleanable heatable coolable toggleable sliceable isreceptacleobject".split()
_MARKS = "opened isclean ishot iscool istoggled issliced".split()


@dataclass(frozen=True, slots=True)
class World:
    """A game's constants. Ids everywhere; sequences are in the order of the ids, which is the order of all texts."""

    texts: Texts
    task: str
    """The sentence that states the task."""
    goal: Goal
    names: Mapping[str, str]
    start: str
    """Location of the agent at the beginning."""
    receptacles_at: Mapping[str, Sequence[str]]
    """Location → what stands there."""
    in_sight: Sequence[str]
    """Every receptacle: the list of the introduction."""
    go_to: Mapping[str, Mapping[str, Rule]]
    """Location → the commands to go anywhere else."""
    openable: frozenset[str]
    kinds: Mapping[str, frozenset[str]]
    """Object or receptacle → its types ("mugtype")."""
    able: Mapping[str, frozenset[str]]
    """`pickupable`, `cleanable`, `toggleable`, … → objects."""
    fits: frozenset[tuple[str, str]]
    """(type of receptacle, type of object) where the one takes the other."""
    inside: Mapping[str, Sequence[str]]
    """Object that holds others → these; it never changes."""
    contents: Mapping[str, Sequence[str]]
    """Receptacle → objects in it at the beginning."""
    lying: frozenset[tuple[str, str]]
    """(object, location) at the beginning."""
    marks: Mapping[str, frozenset[str]]
    """`opened`, `ishot`, … → what it holds for at the beginning."""

    commands: dict[Rule, str] = field(default_factory=dict)
    """Rule → its command, as they are first needed."""

    def command(self, action: str, /, **objects: str) -> tuple[str, Rule]:
        """The command of an action, and the rule that it stands for."""
        rule = (action, *objects.values())
        if rule not in self.commands:
            names = {slot: self.names[thing] for slot, thing in objects.items()}
            self.commands[rule] = self.texts.command(action, **names)
        return self.commands[rule], rule

    def takes(self, receptacle: str, thing: str) -> bool:
        """True if a receptacle's type accepts an object's type."""
        return any(
            (own, kind) in self.fits
            for own in self.kinds.get(receptacle, _NONE)
            for kind in self.kinds.get(thing, _NONE)
        )


def build_world(problem: Problem, texts: Texts, task: str) -> World:
    """The constants of one game."""
    facts, names = problem.facts, problem.names
    receptacles_at: dict[str, list[str]] = defaultdict(list)
    for receptacle, place in facts.get("receptacleatlocation", ()):
        receptacles_at[place].append(receptacle)
    kinds: dict[str, set[str]] = defaultdict(set)
    for thing, kind in (*facts.get("objecttype", ()), *facts.get("receptacletype", ())):
        kinds[thing].add(kind)
    start = facts["atlocation"][0][1]
    ways = [  # each command once, whatever the number of places from which one may go: this is most of a world
        (place, texts.command("GotoLocation", r=names[receptacle]), ("GotoLocation", receptacle, place))
        for receptacle, place in facts.get("receptacleatlocation", ())
    ]
    go_to = {
        here: {command: rule for place, command, rule in ways if place != here} for here in {start, *receptacles_at}
    }
    return World(
        texts=texts,
        task=task,
        goal=problem.goal,
        names=names,
        start=start,
        receptacles_at=receptacles_at,
        in_sight=[receptacle for receptacle, _ in facts.get("receptacleatlocation", ())],
        go_to=go_to,
        openable=_all(problem, "openable"),
        kinds={thing: frozenset(kinds[thing]) for thing in names},  # a thing may have no type at all
        able={name: _all(problem, name) for name in _ABILITIES},
        fits=frozenset((row[0], row[1]) for row in facts.get("cancontain", ())),
        inside=_grouped(facts.get("inreceptacleobject", ())),
        contents=_grouped(facts.get("inreceptacle", ())),
        lying=frozenset((row[0], row[1]) for row in facts.get("objectatlocation", ())),
        marks={name: _all(problem, name) for name in _MARKS},
    )


def _all(problem: Problem, predicate: str) -> frozenset[str]:
    return frozenset(row[0] for row in problem.facts.get(predicate, ()))


def _grouped(pairs: Sequence[tuple[str, ...]]) -> dict[str, list[str]]:
    """(inner, outer) → outer: inners, in order."""
    grouped: dict[str, list[str]] = defaultdict(list)
    for inner, outer in pairs:
        grouped[outer].append(inner)
    return grouped
