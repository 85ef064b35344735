"""Constant data of a game, laid out for the engine and shared by all episodes of the game."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from skill_ttrl.envs.alfworld.grammar import Texts
from skill_ttrl.errors import EnvError

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


_FACT = re.compile(r"\(\s*([\w-]+)\s*([^()]*)\)")
_COMMENT = re.compile(r";[^\n]*")
_SPACE = re.compile(r"\s+")
_WORN_DOWN = {"distance", "total-cost", "="}
"""Of the init's other expressions: they cost a planner something and a player nothing."""
_NESTED = re.compile(r"\(\s*[\w-]+[^()]*\(")
_ID = re.compile(r"[\w-]+")
_ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    "atlocation": ("agent", "location"),
    "receptacleatlocation": ("receptacle", "location"),
    "objectatlocation": ("object", "location"),
    "inreceptacle": ("object", "receptacle"),
    "inreceptacleobject": ("object", "object"),
    "objecttype": ("object", "otype"),
    "receptacletype": ("receptacle", "rtype"),
    "cancontain": ("rtype", "otype"),
    **dict.fromkeys(("openable", "opened"), ("receptacle",)),
    **dict.fromkeys(
        "pickupable cleanable heatable coolable toggleable sliceable isreceptacleobject isclean ishot iscool istoggled "
        "issliced".split(),
        ("object",),
    ),
}
"""Of the predicates that the engine reads → the types of their arguments. A planner drops a fact about anything else."""


@dataclass(frozen=True, slots=True)
class Goal:
    """Winning condition: one of the six kinds of ALFRED's goals."""

    kind: str
    """`place`, `two`, `clean`, `heat`, `cool` or `light`."""
    object_type: str
    """Of the object that is carried, lower case, without "type": "mug"."""
    target_type: str
    """Of the receptacle that it ends in; for `light`, of the lamp."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem's facts, lower case as the planner reads them."""

    types: Mapping[str, str]
    """Id of each declared object → its type ("object", "receptacle", "location", "agent", …)."""
    facts: Mapping[str, tuple[tuple[str, ...], ...]]
    """Predicate → arguments of each initial fact, sorted; the order of all texts."""
    names: Mapping[str, str]
    """Id → what a player reads ("mug 1"), for every id that occurs in a fact."""
    goal: Goal


_GOALS = {
    kind: re.compile(pattern.replace("TYPE", r"(\w+)type").replace(" ", r"\s*"))
    for kind, pattern in {
        "place": r"\(and \(exists \(\?r - receptacle\) \(exists \(\?o - object\) \(and \(inreceptacle \?o \?r\) "
        r"\(objecttype \?o TYPE\) \(receptacletype \?r TYPE\) \) \) \) \)",
        "two": r"\(and \(exists \(\?r - receptacle\) \(exists \(\?o1 - object\) \(and \(objecttype \?o1 TYPE\) "
        r"\(receptacletype \?r TYPE\) \(inreceptacle \?o1 \?r\) \(exists \(\?o2 - object\) \(and \(not \(= \?o1 \?o2\)\) "
        r"\(objecttype \?o2 TYPE\) \(receptacletype \?r TYPE\) \(inreceptacle \?o2 \?r\) \) \) \) \) \) \)",
        **{
            kind: rf"\(and \(exists \(\?r - receptacle\) \(exists \(\?o - object\) \(and \({able} \?o\) "
            rf"\(objecttype \?o TYPE\) \(receptacletype \?r TYPE\) \({done} \?o\) \(inreceptacle \?o \?r\) \) \) \) \)"
            for kind, able, done in (
                ("clean", "cleanable", "isclean"),
                ("heat", "heatable", "ishot"),
                ("cool", "coolable", "iscool"),
            )
        },
        "light": r"\(and \(exists \(\?ot - object \?r - receptacle \?a - agent \?l - location\) \(and "
        r"\(objecttype \?ot TYPE\) \(toggleable \?ot\) \(istoggled \?ot\) \(receptacleatlocation \?r \?l\) "
        r"\(atlocation \?a \?l\) \(inreceptacle \?ot \?r\) \) \) \(exists \(\?o - object \?a - agent\) \(and "
        r"\(objecttype \?o TYPE\) \(holds \?a \?o\) \) \) \)",
    }.items()
}


def read_problem(text: str) -> Problem:
    """A problem from its PDDL.

    Raises:
        EnvError: a part is missing or cut off, or the goal is of no known kind.
    """
    text = _COMMENT.sub("", text).lower()
    objects = text.find("(:objects")
    init = text.find("(:init", objects)
    goal = text.find("(:goal", init)
    if min(objects, init, goal) < 0:
        raise EnvError("its problem has no (:objects …), (:init …) and (:goal …), in this order")
    if text.count("(") != text.count(")"):
        raise EnvError("the brackets of its problem do not match")
    types = _types(text[objects + len("(:objects") : init])
    facts = _facts(text[init + len("(:init") : goal], types)
    if len(facts.get("atlocation", ())) != 1:
        raise EnvError(f"its agent is in {len(facts.get('atlocation', ()))} places")
    names = _names(arg for rows in facts.values() for row in rows for arg in row)
    _check_household(facts, names)
    return Problem(types, facts, names, _goal(text[goal:]))


def _types(text: str) -> dict[str, str]:
    types: dict[str, str] = {}
    waiting: list[str] = []
    words = iter(text.replace(")", " ").split())
    for word in words:
        if word == "-":
            kind = next(words, "")
            types.update(dict.fromkeys(waiting, kind))
            waiting.clear()
        else:
            waiting.append(word)
    return types


def _facts(text: str, types: Mapping[str, str]) -> dict[str, tuple[tuple[str, ...], ...]]:
    nested = _NESTED.search(text)  # such as (not (opened …)), which would be taken for its inner part
    if nested is not None:
        raise EnvError(f"its facts contain an expression: {nested[0][:80]}…")
    found: dict[str, set[tuple[str, ...]]] = defaultdict(set)
    for predicate, arguments in _FACT.findall(text):
        if predicate not in _WORN_DOWN:
            found[predicate].add(tuple(arguments.split()))
    for predicate, kinds in _ARGUMENTS.items():
        if any(len(row) != len(kinds) for row in found.get(predicate, ())):
            raise EnvError(f"a fact {predicate!r} does not have {len(kinds)} argument{'s' * (len(kinds) > 1)}")
    named = {arg for rows in found.values() for row in rows for arg in row}
    if named - types.keys():
        raise EnvError(f"its facts name {min(named - types.keys())!r}, which is not declared")
    odd = sorted(name for name in named if not _ID.fullmatch(name))
    if odd:
        raise EnvError(f"{odd[0][:80]!r} is not the name of an object")
    for predicate, kinds in _ARGUMENTS.items():
        for row in found.get(predicate, ()):
            if tuple(types[arg] for arg in row) != kinds:
                raise EnvError(f"its fact ({predicate} {' '.join(row)}) is not about {' and '.join(kinds)}")
    return {predicate: tuple(sorted(rows)) for predicate, rows in found.items()}


def _check_household(facts: Mapping[str, tuple[tuple[str, ...], ...]], names: Mapping[str, str]) -> None:
    """Check what holds in every official game and the engine relies on.

    The hand is empty at the start, each receptacle stands in one place, and names are unique, so that a command means one thing.
    """
    if "holds" in facts or "holdsany" in facts:
        raise EnvError("its agent starts with an object in its hand")
    places = Counter(receptacle for receptacle, _ in facts.get("receptacleatlocation", ()))
    for receptacle in [*places, *(receptacle for _, receptacle in facts.get("inreceptacle", ()))]:
        if places[receptacle] != 1:
            raise EnvError(f"its {names[receptacle]} stands in {places[receptacle]} places")
    entities = {thing for kind in ("receptacletype", "objecttype") for thing, _ in facts.get(kind, ())}
    for name, count in Counter(names[thing] for thing in entities).items():
        if count > 1:
            raise EnvError(f"{count} of its things are called {name!r}")


def _names(ids: Iterable[str]) -> dict[str, str]:
    """The names of ALFWorld's `Demangler`: things of a kind are numbered by descending id."""
    kinds = {identifier: _kind(identifier) for identifier in sorted(set(ids))}
    left = Counter(kind for identifier, kind in kinds.items() if "_bar_" in identifier)
    names = {}
    for identifier, kind in kinds.items():
        if "_bar_" in identifier:
            names[identifier] = f"{kind} {left[kind]}"
            left[kind] -= 1
        else:
            names[identifier] = f"{kind} "
    return names


def _kind(identifier: str) -> str:
    kind, bar, _ = identifier.partition("_bar_")
    if not bar:
        for mark, sign in (("_minus_", "-"), ("_plus_", "+"), ("_dot_", "."), ("_comma_", ",")):
            kind = kind.replace(mark, sign)
        return kind
    return f"{kind}basin" if "basin" in identifier else kind


def _goal(text: str) -> Goal:
    body = _SPACE.sub(" ", text.removeprefix("(:goal")).strip()
    for kind, pattern in _GOALS.items():
        match = pattern.match(body)
        if match is None:
            continue
        types = match.groups()
        if kind == "light":
            return Goal(kind, types[1], types[0])
        if types[:2] == (types[-2], types[-1]):  # `two` names them twice
            return Goal(kind, types[0], types[1])
    raise EnvError(f"its goal is none of ALFRED's six kinds: {body[:200]}")
