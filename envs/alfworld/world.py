"""A game's constant data, laid out for the engine and shared by all its episodes: its facts, its goal and its texts.

The texts are those of its grammar (`.twl2`): commands, answers and the task, as far as another wording may differ. The structure, which
symbol stands where and under which condition, is that of the engine in `engine.py`; a grammar of another structure is refused. The words
between are the game's own.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

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
ACTIONS = {"clean": "CleanObject", "heat": "HeatObject", "cool": "CoolObject"}
"""Kind of goal → the action that it takes."""
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
    if min(objects, init, goal) < 0 or text.count("(") != text.count(")"):
        raise EnvError("its problem has no whole (:objects …), (:init …) and (:goal …), in this order")
    rows: dict[str, set[tuple[str, ...]]] = defaultdict(set)
    for predicate, arguments in _FACT.findall(text[init + len("(:init") : goal]):
        if predicate not in ("distance", "total-cost", "="):  # they cost a planner something and a player nothing
            rows[predicate].add(tuple(arguments.split()))
    facts = {predicate: tuple(sorted(own)) for predicate, own in rows.items()}
    if len(facts.get("atlocation", ())) != 1:
        raise EnvError(f"its agent is in {len(facts.get('atlocation', ()))} places")
    names = _names(arg for own in facts.values() for row in own for arg in row)
    _check_household(facts, names)
    return Problem(facts, names, _goal(text[goal:]))


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


# The grammar.

_TASK = re.compile(r'("task"\s*:\s*\[\s*\{\s*"rhs"\s*:\s*)"((?:[^"\\]|\\.)*)"')
_RULES = re.compile(r'grammar\s*::\s*"""(.*?)"""\s*;', re.DOTALL)
_ACTION = re.compile(r'action\s+(\w+)\s*\{\s*template\s*::\s*"([^"]*)"\s*;\s*feedback\s*::\s*"([^"]*)"\s*;')
_SLOT = re.compile(r"\[\{.*?\}\]|\{.*?\}|#.*?#")
_PREDICATE = re.compile(r"(\w+)\(")
_SHORT = (
    (re.compile(r"\[\{\s*(\w+)\.name\s*\|\s*receptacleatlocation\(.*?\}\]"), r"{\1}"),  # in "go to": a list of one
    (re.compile(r"\[\{.*?\}\]"), "{list}"),
    (re.compile(r"\{\w+\.indefinite\}"), "a"),  # the engine knows no other article
    (re.compile(r"\{(\w+)\.name(?: or \1\.id)?\}"), r"{\1}"),
)
STRUCTURE = "23d2ff0978ddf369"


@dataclass(frozen=True, slots=True)
class Texts:
    """Words of a grammar, with the slots `{o}`, `{r}`, `{co}`, `{ko}` for names and `{list}` for a list of things."""

    commands: Mapping[str, str]
    """Action → template of its command: "take {o} from {r}"."""
    answers: Mapping[str, tuple[str, ...]]
    """Symbol → its texts, in the order of their conditions."""
    conditions: Mapping[str, tuple[tuple[str, ...], ...]]
    """Symbol → for each of its texts the predicates that must hold; none for the last."""
    help: str

    def command(self, action: str, /, **names: str) -> str:
        """The command of an action on the things named."""
        return fill(self.commands[action], **names)

    def answer(self, symbol: str, number: int = 0, /, **names: str) -> str:
        """A symbol's text under its `number`-th condition."""
        return fill(self.answers[symbol][number], **names)

    def listing(self, items: Sequence[str]) -> str:
        """Things in a row: "a, b, and c"; as the grammar has it, "a, and b" for two."""
        if not items:
            return self.answers["list_empty"][0]
        row = self.answers["list_separator"][0].join(items[:-1])
        return f"{row}{self.answers['list_last_separator'][0]}{items[-1]}" if row else items[0]


def fill(text: str, /, **names: str) -> str:
    """`text` with names in its slots; what stands in a name is left alone."""
    for slot, name in names.items():
        text = text.replace(f"{{{slot}}}", name)
    return text


def is_text(text: str) -> bool:
    """True if a text can be encoded as UTF-8. JSON can contain lone surrogates, which cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def read_grammar(text: str) -> tuple[Texts, str]:
    """A grammar's texts, and the sentence that states the task ("Your task is to: …").

    Raises:
        EnvError: it is no grammar, or one of another structure.
    """
    task = _TASK.search(text)
    if task is None:
        raise EnvError("its grammar has no task")
    try:
        sentence = json.loads(f'"{task[2]}"')
    except json.JSONDecodeError as error:
        raise EnvError(f"the task in its grammar is no text: {error}") from None
    if not is_text(sentence):
        raise EnvError("the task in its grammar is no Unicode text")
    return _texts(text[: task.start()] + task[1] + '""' + text[task.end() :]), sentence


@functools.lru_cache(maxsize=8)
def _texts(text: str) -> Texts:
    rules = _rules(text)
    help_text = rules.pop("help.feedback", [{"rhs": "#help.feedback#"}])[0]["rhs"]  # a symbol in the package's own file
    actions = [
        (name, template, feedback.replace("#help.feedback#", help_text))
        for name, template, feedback in _ACTION.findall(text)
    ]
    found = structure(rules, actions)
    if found != STRUCTURE:
        raise EnvError(f"the structure of its grammar differs from ALFWorld's ({found}, not {STRUCTURE})")
    return Texts(
        commands={name: _slots(template) for name, template, _ in actions},
        answers={name: tuple(_slots(rule["rhs"]) for rule in own) for name, own in rules.items()},
        conditions={
            name: tuple(tuple(_PREDICATE.findall(rule.get("condition", ""))) for rule in own)
            for name, own in rules.items()
        },
        help=next(feedback for name, _, feedback in actions if name == "help").lstrip(),
    )


def _rules(text: str) -> dict[str, list[dict[str, str]]]:
    """Symbol → its texts with their conditions."""
    rules: dict[str, Any] = {}
    try:
        for block in _RULES.findall(text):
            rules.update(json.loads("\n".join(line for line in block.split("\n") if not line.lstrip().startswith("#"))))
    except (ValueError, TypeError, RecursionError) as error:
        raise EnvError(f"its grammar cannot be read: {error}") from None
    for name, own in rules.items():
        if not (isinstance(own, list) and own and all(map(_is_rule, own))):
            raise EnvError(f"{name!r} of its grammar is not a list of texts")
    return rules


def _is_rule(rule: Any) -> bool:
    return (
        isinstance(rule, dict)
        and isinstance(rule.get("rhs"), str)
        and isinstance(rule.get("condition", ""), str)
        and is_text(rule["rhs"])
    )


def _slots(text: str) -> str:
    """Short names for the slots. White space at the start is dropped, as the official parser does."""
    for pattern, short in _SHORT:
        text = pattern.sub(short, text)
    return text.lstrip()


def structure(rules: Mapping[str, list[dict[str, str]]], actions: Sequence[tuple[str, str, str]]) -> str:
    """A hash of everything but the words: symbols, conditions, slots, and the actions with theirs."""
    found = _SLOT.findall
    texts = [(name, [(rule.get("condition", ""), found(rule["rhs"])) for rule in own]) for name, own in rules.items()]
    said = [(name, sorted(found(template)), found(feedback)) for name, template, feedback in actions]
    return hashlib.blake2b(json.dumps([sorted(texts), sorted(said)]).encode(), digest_size=8).hexdigest()
