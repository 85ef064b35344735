"""An exploring expert for ALFWorld: it knows what an agent sees, and where such objects usually are.

It reads the task's sentence once and from then on only the admissible commands: they name what can be reached, taken,
opened and lit here, whatever the wording of the observations. What it has come across stays in a `Room`. `next_command` is
the whole play, one decision a step: fetch the thing, treat it where the task says so, bring it. What has not been seen yet is
looked for where it most likely is for the steps that looking costs (`chance`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

OPENABLE = frozenset({"cabinet", "drawer", "fridge", "microwave", "safe"})
"""Kinds of receptacle that are closed at first, but for a few: it takes a second step to look into them."""
RARE = 0.005
"""Chance of what the table does not name: half a per cent, below which nothing is written there."""
_ROWS = {
    thing: {place: int(share) / 100 for place, share in map(str.split, places.split(", "))}
    for thing, places in (
        line.split(": ")
        for line in Path(__file__).with_name("expert_places.txt").read_text(encoding="utf-8").splitlines()
    )
}
"""Thing → receptacle → share of such receptacles that hold such a thing, in rooms that have one. Counted once over the 3,553 games of the
split `train`, never over a validation game, by `python benchmarks/alfworld_expert.py places`."""
_ANY = {place: fmean(row.get(place, 0.0) for row in _ROWS.values()) for place in set().union(*_ROWS.values())}
"""Receptacle → chance of a thing of which nothing is known: the mean over all that are known."""
TOOLS = {"clean": "sinkbasin", "heat": "microwave", "cool": "fridge"}
"""Treatment of an object → kind of receptacle that performs it, open or closed."""
_UNDOES = {"heat": "cool", "cool": "heat"}
TRIES = 4
"""Times that a command is given by plan. A plan that asks for more is stuck, and the least tried command is given instead."""
UNLIKELY = 0.01
"""Factor on the chance of a receptacle where the task wants the thing: were it there, nothing would have been asked."""

_WORD = r"(?:an? |the |some )?([a-z]+)"
_INTO = r"(?:in/on|in|on)"
_SENTENCES = (
    ("two", rf"\b(?:put|find) two ([a-z]+)(?: and put them)? {_INTO} {_WORD}"),
    ("state", rf"\b(clean|heat|cool) {_WORD} and put it {_INTO} {_WORD}"),
    ("state", rf"\bput (?:an? |the |some )?(clean|hot|cool) ([a-z]+) {_INTO} {_WORD}"),
    ("place", rf"\bput {_WORD} {_INTO} {_WORD}"),
    ("light", rf"\b(?:look at|examine) {_WORD} (?:under|with) {_WORD}"),
)
"""The sentences of the official games (`alfworld/gen/goal_library.py`), whatever the article."""
_TASK = re.compile(r"your task is to:([^\n]*)", re.IGNORECASE)
_COMMAND = re.compile(
    r"(go to|open|close|examine|use|take|move|clean|heat|cool) (.+?)(?: (?:from|to|with) (.+))?", re.DOTALL
)
_PUT = re.compile(r"put (.+?) in/on (.+)", re.DOTALL)
"""`move X to Y` as games of before December 2024 say it."""
_CURIOSITY = ("open", "use", "clean", "heat", "cool", "go to", "take", "move", "close", "examine")
"""Verbs by how much they may show of a room that gives no clue; all others come last."""
_ALWAYS = ("help", "inventory", "look")
"""Commands to choose from if none are listed."""


def chance(thing: str, place: str) -> float:
    """How likely one receptacle of a kind holds a thing of a kind.

    Args:
        thing: its kind, such as "mug". Any other text is a thing of which nothing is known.
        place: the receptacle's kind, such as "coffeemachine".

    Returns:
        In (0, 1], at least `RARE`.
    """
    return max(_ROWS.get(thing, _ANY).get(place, RARE), RARE)


@dataclass(frozen=True, slots=True)
class Goal:
    """A task's sentence, understood."""

    how: str
    """`place`, `two`, `light`, `clean`, `heat` or `cool`."""
    wanted: str
    """Kind of the thing, such as "mug"."""
    target: str
    """Kind of the receptacle that it belongs in, or of the lamp to turn on."""
    tool: str = ""
    """Kind of the receptacle that treats the thing; empty: as usual (`TOOLS`)."""


@dataclass(slots=True)
class Room:
    """Everything observed in a room so far. Objects and receptacles go by their names, such as "mug 2"."""

    places: set[str] = field(default_factory=set)
    """Receptacles, near and far."""
    here: set[str] = field(default_factory=set)
    """Those within reach; several may stand at one spot."""
    visited: set[str] = field(default_factory=set)
    """Those that were within reach at some time."""
    shut: set[str] = field(default_factory=set)
    """Those last seen closed."""
    inside: dict[str, set[str]] = field(default_factory=dict)
    """Receptacle that was looked into → what was in it."""
    lamps: dict[str, str] = field(default_factory=dict)
    """Object that can be turned on → a receptacle within reach of it."""
    held: str | None = None
    """Object in the agent's only hand; None if it is empty."""
    welcome: set[str] = field(default_factory=set)
    """Receptacles within reach that would take what is held."""
    refused: set[tuple[str, str]] = field(default_factory=set)
    """(kind of a thing that was held, receptacle that stood open and would not take it)."""
    treated: set[tuple[str, str]] = field(default_factory=set)
    """("clean", "heat" or "cool", thing that has been treated so and still is)."""

    def see(self, commands: Sequence[str]) -> None:
        """Take note of what the commands that are possible now tell about the room."""
        told = [found.groups() for command in commands if (found := _COMMAND.fullmatch(command))]

        def named(*verbs: str) -> set[str]:
            return {thing for verb, thing, _ in told if verb in verbs}

        self.places |= named("go to", "open", "close") | {place for *_, place in told if place}
        self.here = named("examine", "open", "close") & self.places
        self.visited |= self.here
        self.shut = (self.shut - self.here) | named("open")
        self.held = min(named("move", "clean", "heat", "cool") | (named("examine") - self.places), default=None)
        self.welcome = {place for verb, _, place in told if verb == "move" and place}
        if self.held is not None:
            self.refused |= {(kind(self.held), place) for place in self.here - self.shut - self.welcome}
            for objects in self.inside.values():
                objects.discard(self.held)
        else:  # only an empty hand gets take commands, which show what is inside
            for place in self.here - self.shut:
                self.inside[place] = {thing for verb, thing, at in told if verb == "take" and at == place}
        self.lamps |= {lamp: min(self.here) for lamp in named("use") if self.here}

    def undergo(self, command: str) -> None:
        """Take note of what a command that was given does to what is held; what is heated is cool no more."""
        verb, thing, _ = found.groups() if (found := _COMMAND.fullmatch(command)) else ("", "", "")
        if verb in TOOLS:
            self.treated.add((verb, thing))
            self.treated.discard((_UNDOES.get(verb, ""), thing))

    def steps_into(self, place: str) -> int:
        """Steps from here until one sees what is in a receptacle, 0 to 2, by what is known of it."""
        closed = place in self.shut if place in self.visited else kind(place) in OPENABLE
        return (place not in self.here) + closed

    def approach(self, place: str) -> str | None:
        """The next command on the way into a receptacle; None: it is within reach and open."""
        if place not in self.here:
            return f"go to {place}"
        return f"open {place}" if place in self.shut else None


def kind(name: str) -> str:
    """`mug 2` → `mug`."""
    return name.rpartition(" ")[0] or name


def read_goal(observation: str) -> Goal | None:
    """The task that the first observation of an episode states; None: no known sentence is in it."""
    stated = _TASK.search(observation)
    sentence = " ".join((stated.group(1) if stated else observation).lower().split())
    for how, pattern in _SENTENCES:
        if found := re.search(pattern, sentence):
            *state, wanted, target = found.groups()
            how = state[0] if state else how
            return Goal("heat" if how == "hot" else how, wanted, target)
    return None


def next_command(goal: Goal, room: Room) -> str | None:
    """Next action; None: nothing that this goal needs is left to do or to look for."""
    held = room.held
    if held is None:
        return _fetch(goal, room)
    if kind(held) != goal.wanted:
        return next((f"move {held} to {place}" for place in sorted(room.welcome)), None)
    if goal.how == "light":
        return _light(goal, room)
    if goal.how in TOOLS and (goal.how, held) not in room.treated:
        tool = _nearest(room, [place for place in room.places if kind(place) == (goal.tool or TOOLS[goal.how])])
        return tool and (f"{goal.how} {held} with {tool}" if tool in room.here else f"go to {tool}")
    place = _destination(goal, room)
    return place and (room.approach(place) or f"move {held} to {place}")


def _fetch(goal: Goal, room: Room) -> str | None:
    """Towards a thing that was seen and is of use; where there is none, towards the best place to look into."""
    there = {
        place: min(objects)
        for place, inside in room.inside.items()
        if (objects := [thing for thing in inside if kind(thing) == goal.wanted])
        and not (goal.how == "two" and place == _destination(goal, room))
    }
    if place := _nearest(room, there):
        return room.approach(place) or f"take {there[place]} from {place}"
    place = _best_guess(goal, room)
    return place and room.approach(place)


def _best_guess(goal: Goal, room: Room) -> str | None:
    """The receptacle not yet looked into where the thing is likeliest for each step that looking costs."""

    def worth(place: str) -> float:
        likely = chance(goal.wanted, kind(place))
        if goal.how in ("place", "two") and kind(place) == goal.target:
            likely *= UNLIKELY
        return likely / max(room.steps_into(place), 1)

    return max(_in_order(room.places - room.inside.keys()), key=worth, default=None)


def _light(goal: Goal, room: Room) -> str | None:
    """Turns on the lamp, where it was seen; looks for it in other places where not."""
    lamps = {place: lamp for lamp, place in sorted(room.lamps.items()) if kind(lamp) == goal.target}
    if place := _nearest(room, lamps):
        return f"use {lamps[place]}" if place in room.here else f"go to {place}"
    unseen = room.places - room.visited
    place = max(_in_order(unseen), key=lambda place: chance(goal.target, kind(place)), default=None)
    return place and f"go to {place}"


def _destination(goal: Goal, room: Room) -> str | None:
    """Where the thing is to be brought: two go where one is already, all else to the nearest that is of the kind."""
    places = {place for place in room.places if kind(place) == goal.target and (goal.wanted, place) not in room.refused}
    if goal.how == "two":
        begun = {place for place in places if any(kind(thing) == goal.wanted for thing in room.inside.get(place, ()))}
        places = begun or places
    return _nearest(room, places)


def _nearest(room: Room, places: Iterable[str]) -> str | None:
    return min(_in_order(places), key=room.steps_into, default=None)


def _in_order(places: Iterable[str]) -> list[str]:
    """Always the same for the same names, and "shelf 9" before "shelf 10": among equals the first is chosen."""
    return sorted(places, key=lambda place: (len(place), place))


def _goal_and_verbs(rule: object, observation: str) -> tuple[Goal | None, Mapping[str, str]]:
    """Read the goal of a game, and the verbs that are swapped in one whose treatment has another word and another tool.

    `rule` is what such a game states (`info["rule"]`, see `envs/alfworld/env.py`). The goal is read as that of a cleaning
    task: no decision depends on the kind of treatment. No verbs are swapped where no rule is stated, or no known sentence is left under it.
    """
    if isinstance(rule, str) and len(rule.split()) == 3:
        state, verb, tool = rule.split()
        stated = _TASK.search(observation)
        sentence = stated[0] if stated else observation
        for word in (verb, state):
            goal = read_goal(re.sub(rf"(?<=[: ]){word}\b", "clean", sentence, count=1)) if word in sentence else None
            if goal is not None and goal.how == "clean":
                return replace(goal, tool=tool), {verb: "clean", "clean": verb}
    return read_goal(observation), {}


class ALFWorldExpert:
    """Plays ALFWorld by the task's sentence and `info["admissible_commands"]`, of which it takes one in every step.

    It reads nothing else: no game file, no walkthrough, no type of task, and no other text than the first; of a game under another rule
    (`info["rule"]`) also that. It plays the same
    with every seed. A task that it does not understand, and a room in which its plan finds nothing more to do, it explores: the
    command that was given least often comes next.
    """

    def __init__(self) -> None:
        self.start("", {}, 0)

    def start(self, observation: str, info: Mapping[str, Any], seed: int) -> None:
        """Read the goal, and the rule if there is one, and forget the previous episode."""
        self._goal, self._verbs = _goal_and_verbs(info.get("rule"), observation)
        self._room = Room()
        self._given: Counter[str] = Counter()
        self._commands: list[str] = []
        self.guesses = False
        """True where its plan had no command for the last step, and it took the least tried one."""
        self._done: str | None = None

    def act(self, observation: str, info: Mapping[str, Any]) -> str:
        """Return the plan's next command, or the one given least often where the plan has none or is stuck."""
        listed = info.get("admissible_commands")
        commands = [text for text in listed if isinstance(text, str)] if isinstance(listed, list | tuple) else []
        games_own = {self._usual(command): command for command in commands}
        commands = list(games_own)
        room, goal = self._room, self._goal
        if self._done is not None:  # before the room is seen again: it tells what was held then
            self._given[self._done] += 1
            room.undergo(self._done)
        room.see(commands)
        self._commands = commands
        command = next_command(goal, room) if goal else None
        self.guesses = command is None or command not in commands or self._given[command] >= TRIES
        if command is None or self.guesses:
            command = self._least_tried(commands)
        self._done = command
        return games_own.get(command, command)

    def overruled(self, action: str) -> None:
        """Record the command that was executed instead of the chosen one. An impossible command changes nothing in the room.

        An interrupted plan is not stuck, so the counts of given commands start again at zero. Without this, the detours of another
        agent would use up the allowed repeats.
        """
        action = self._usual(action.strip())
        self._done = action if action in self._commands else None
        if self._goal is not None:
            self._given.clear()

    def _usual(self, command: str) -> str:
        """A command of the game in the words that the expert knows."""
        said = _PUT.fullmatch(command)
        verb, space, rest = (command if said is None else f"move {said[1]} to {said[2]}").partition(" ")
        return f"{self._verbs.get(verb, verb)}{space}{rest}"

    def _least_tried(self, commands: Sequence[str]) -> str:
        """The command given least often; among equals the one that may show most."""

        def order(command: str) -> tuple[int, int, str]:
            ranks = (rank for rank, verb in enumerate(_CURIOSITY) if command.startswith(verb))
            return self._given[command], next(ranks, len(_CURIOSITY)), command

        return min(commands or _ALWAYS, key=order)
