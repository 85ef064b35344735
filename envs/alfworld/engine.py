"""The ALFRED text domain, simulated directly: the official engine's answers, byte for byte, without a planner or a parser.

The domain is small. There is one agent; receptacles stand at locations and hold objects. What an action needs and what it does
is said in `alfred.pddl`, under the names that the rules have here. Texts are the grammar's. Whatever lists objects lists them by
id, and the commands are sorted.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Iterator, Mapping, Set
from typing import NamedTuple

from skill_ttrl.envs.alfworld.world import KNIVES, TOOLS, Rule, World
from skill_ttrl.envs.text_env import state_digest

NOTHING = "Nothing happens."
_LOOK_AT = "#examineReceptacle.feedback#"
_STATES = {"clean": ("cleanable", "isclean"), "heat": ("heatable", "ishot"), "cool": ("coolable", "iscool")}
"""Kind of goal → what the object must allow, and what it must be."""
_TREATMENTS = {"CleanObject": ("isclean",), "HeatObject": ("ishot", "iscool"), "CoolObject": ("iscool", "ishot")}
"""Action → what the object is after it, and then what it is no more."""
_HARMLESS = frozenset({"GotoLocation", "examineReceptacle", "examineObject", "inventory", "look", "help"})
"""Actions that change nothing but where the agent stands."""
_NONE: frozenset[str] = frozenset()
Tools = Mapping[str, tuple[str, frozenset[str]]]
"""Action → what the object must be, and the types of receptacle that do it."""


class FastEngine:
    """One game being played. Its state is a few sets of ids; all the rest is the `World`, shared by all who play it.

    Args:
        world: the game.
        tools: as `world.TOOLS`; a variant of a game has others (`env.vary`).
    """

    def __init__(self, world: World, tools: Tools = TOOLS) -> None:
        self.world, self._tools = world, tools
        self._restart()

    def reset(self) -> Frame:
        """The game from its start."""
        self._restart()
        introduction = self._say("intro").replace("#look.feedback#", self._look(None))
        return self._frame(introduction.replace("#task#", self.world.task))

    def step(self, command: str) -> Frame:
        """Any text is a command; surrounding white space is dropped, and one that is not admissible changes nothing."""
        rule = self._rules.get(command.strip())
        return self._frame(NOTHING if rule is None else self._apply(*rule))

    def _restart(self) -> None:
        world = self.world
        self._here = world.start
        self._contents = {receptacle: list(world.contents.get(receptacle, ())) for receptacle in world.in_sight}
        self._lying = set(world.lying)
        self._taken: set[tuple[str, str]] = set()
        """(object, receptacle) where a taking made it false that the one is in the other, and nothing made it true again."""
        self._held: list[str] = []
        self._marks = {name: set(objects) for name, objects in world.marks.items()}
        self._rules: dict[str, Rule] = {}
        self._facts_at_start = self._facts()
        self._changed: list[tuple[str, ...]] | None = []
        """Facts that hold now or held at the start, but not both, sorted; None where they are to be found again."""

    def state(self) -> str:
        """Digest of the exact state (`state_digest`): where the agent stands, and which facts have changed since the start."""
        if self._changed is None:
            self._changed = sorted(self._facts() ^ self._facts_at_start)
        return state_digest(self._here, self._changed)

    def _facts(self) -> set[tuple[str, ...]]:
        """All that can change but where the agent stands, in the words of `alfred.pddl`."""
        return {
            *(("inreceptacle", thing, place) for place, contents in self._contents.items() for thing in contents),
            *(("not_inreceptacle", *pair) for pair in self._taken),
            *(("objectatlocation", *pair) for pair in self._lying),
            *(("holds", thing) for thing in self._held),
            *((mark, thing) for mark, things in self._marks.items() for thing in things),
        }

    def _frame(self, feedback: str) -> Frame:
        self._rules = {**self.world.go_to[self._here], **dict(self._applicable())}
        return Frame(feedback, tuple(sorted(self._rules)), self._won())

    def _applicable(self) -> Iterator[tuple[str, Rule]]:
        """Every action whose precondition holds, but for those of going elsewhere."""
        world, held = self.world, self._held
        command, able = world.command, world.able
        yield from (command(action) for action in ("look", "inventory", "help"))
        for receptacle in world.receptacles_at.get(self._here, ()):
            contents = self._contents[receptacle]
            yield command("examineReceptacle", r=receptacle)
            if receptacle in world.openable:
                yield command("CloseObject" if receptacle in self._marks["opened"] else "OpenObject", r=receptacle)
            if receptacle not in world.openable or receptacle in self._marks["opened"]:
                if not held:
                    yield from (command("PickupObject", o=o, r=receptacle) for o in contents if o in able["pickupable"])
                yield from (command("PutObject", o=o, r=receptacle) for o in held if world.takes(receptacle, o))
            # These ask of no door whether it is open.
            yield from (command("ToggleObject", o=thing) for thing in contents if thing in able["toggleable"])
            for action, (ability, tools) in self._tools.items():
                if world.kinds[receptacle] & tools:
                    yield from (command(action, o=o, r=receptacle) for o in held if o in able[ability])
        for thing in held:
            # Things that lie about cannot be examined: `alfred.pddl` means them too, but binds a place of the type
            # "location," with its comma, and there is none.
            yield command("examineObject", o=thing)
            if world.kinds[thing] & KNIVES:
                near = (other for other in able["sliceable"] if (other, self._here) in self._lying)
                yield from (command("SliceObject", co=other, ko=thing) for other in near)

    def _apply(self, action: str, *objects: str) -> str:
        """The effect of an action, and what is said of it."""
        marks = self._marks
        if action not in _HARMLESS:
            self._changed = None
        match action, *objects:
            case "GotoLocation", receptacle, place:
                self._here = place
                return self._arrived(action, receptacle)
            case "OpenObject", receptacle:
                marks["opened"].add(receptacle)
                return self._arrived(action, receptacle)
            case "CloseObject", receptacle:
                marks["opened"].discard(receptacle)
                return self._say(f"{action}.feedback", r=receptacle)
            case "PickupObject", thing, receptacle:
                self._contents[receptacle].remove(thing)
                self._taken.add((thing, receptacle))
                self._lying.discard((thing, self._here))
                self._held.append(thing)
                return self._say(f"{action}.feedback", o=thing, r=receptacle)
            case "PutObject", thing, receptacle:
                if thing not in self._contents[receptacle]:  # some begin in two receptacles, and leave one at a time
                    insort(self._contents[receptacle], thing)
                self._taken.discard((thing, receptacle))
                self._lying.add((thing, self._here))
                self._held.remove(thing)
                return self._say(f"{action}.feedback", o=thing, r=receptacle)
            case "CleanObject" | "HeatObject" | "CoolObject", thing, tool:
                done, *undone = _TREATMENTS[action]
                marks[done].add(thing)
                for mark in undone:
                    marks[mark].discard(thing)
                return self._say(f"{action[0].lower()}{action[1:]}.feedback", o=thing, r=tool)
            case "ToggleObject", thing:
                marks["istoggled"].add(thing)  # nothing ever takes it back: a lamp is turned on again and again
                return self._say("toggleObject.feedback", self._holds_for("toggleObject.feedback", thing), o=thing)
            case "SliceObject", thing, knife:
                marks["issliced"].add(thing)
                return self._say("sliceObject.feedback", co=thing, ko=knife)
            case "examineReceptacle", receptacle:
                return self._examine_receptacle(receptacle)
            case "examineObject", thing:
                symbol = "examineObject.feedback"
                return self._list(symbol, self._holds_for(symbol, thing), self.world.inside.get(thing, ()), o=thing)
            case ("inventory",):
                return self._list("inventory.feedback", 0 if self._held else 1, self._held)
            case ("look",):
                return self._look(self._here)
        return self.world.texts.help

    def _arrived(self, action: str, receptacle: str) -> str:
        return self._say(f"{action}.feedback", r=receptacle).replace(_LOOK_AT, self._examine_receptacle(receptacle))

    def _examine_receptacle(self, receptacle: str) -> str:
        symbol = "examineReceptacle.feedback"
        return self._list(symbol, self._holds_for(symbol, receptacle), self._contents[receptacle], r=receptacle)

    def _look(self, here: str | None) -> str:
        """Describe the view from `here`; None: the introduction, which lists the whole room from its middle.

        In the middle, `look` shows nothing: the grammar requires receptacles at the agent's location.
        """
        world = self.world
        beside = world.receptacles_at.get(self._here, ())
        if not beside:
            seen = [self._say("overview(r)", r=r) for r in (world.in_sight if here is None else ())]
            appliances = world.texts.answer("list_appliances", 0 if seen else 1, list=world.texts.listing(seen))
            return self._say("look.feedback", 1).replace("#list_appliances#", appliances)
        floor = [o for o, place in sorted(self._lying) if place == self._here for r in beside if (o, r) in self._taken]
        on_floor = self._list("list_objects_on_the_floor", 0 if floor else 1, floor)
        facing = world.texts.answer("look-variations", list=world.texts.listing([world.names[r] for r in beside]))
        view = self._say("look.feedback").replace("#look-variations#", facing)
        return view.replace("#list_objects_on_the_floor#", on_floor)

    def _holds_for(self, symbol: str, thing: str) -> int:
        """Which of a symbol's texts is meant: the first whose condition holds for `thing`."""
        for number, predicates in enumerate(self.world.texts.conditions[symbol]):
            if all(thing in self._true(predicate) for predicate in predicates):
                return number
        raise AssertionError(symbol)  # the last has no condition

    def _true(self, predicate: str) -> Set[str]:
        """Return the objects for which a predicate holds. Predicates that begin with `not_` are never made true."""
        if predicate == "openable":
            return self.world.openable
        return self._marks.get(predicate) or self.world.able.get(predicate, _NONE)

    def _say(self, symbol: str, number: int = 0, /, **objects: str) -> str:
        names = self.world.names
        return self.world.texts.answer(symbol, number, **{slot: names[thing] for slot, thing in objects.items()})

    def _list(self, symbol: str, number: int, items: Iterable[str], **objects: str) -> str:
        names, texts = self.world.names, self.world.texts
        row = texts.listing([f"a {names[item]}" for item in items])
        return texts.answer(symbol, number, list=row, **{slot: names[thing] for slot, thing in objects.items()})

    def _won(self) -> bool:
        world, goal, marks = self.world, self.world.goal, self._marks
        wanted, target = f"{goal.object_type}type", f"{goal.target_type}type"
        if goal.kind == "light":
            lamps = (thing for r in world.receptacles_at.get(self._here, ()) for thing in self._contents[r])
            lit = any(
                target in world.kinds[lamp] and lamp in marks["istoggled"] and lamp in world.able["toggleable"]
                for lamp in lamps
            )
            return lit and any(wanted in world.kinds[thing] for thing in self._held)
        able, done = _STATES.get(goal.kind, (None, None))
        for receptacle, contents in self._contents.items():
            if target in world.kinds[receptacle]:
                there = [thing for thing in contents if wanted in world.kinds[thing]]
                if able is not None and done is not None:
                    there = [thing for thing in there if thing in world.able[able] and thing in marks[done]]
                if len(there) >= (2 if goal.kind == "two" else 1):
                    return True
        return False


MAX_STEPS = 50
"""An episode's steps in ALFWorld's own configuration (`max_nb_steps_per_episode`)."""


class Frame(NamedTuple):
    """Engine output that a player sees."""

    feedback: str
    """The engine's answer to the last command; at the start the introduction with the task."""
    commands: tuple[str, ...]
    """Every command that does something now, sorted; the engine knows no other."""
    won: bool
    """True if the goal holds now. It may cease to hold: the engine continues."""
