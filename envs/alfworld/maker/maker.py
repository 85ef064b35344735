"""One game after another: a goal, a room for it, its walkthrough, and what stands in its files.

Nothing here is written. The same seed gives the same games on every machine, and the first games of a series do not depend on
its length.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any

from skill_ttrl.envs.alfworld.engine import FastEngine
from skill_ttrl.envs.alfworld.game import TASK_TYPES
from skill_ttrl.envs.alfworld.grammar import read_grammar
from skill_ttrl.envs.alfworld.maker.goals import Goal, goal_series
from skill_ttrl.envs.alfworld.maker.ontology import Ontology, read_floor_plan, read_ontology
from skill_ttrl.envs.alfworld.maker.room import WorldState, furnish, write_problem
from skill_ttrl.envs.alfworld.world import TOOLS, World, build_world, read_problem
from skill_ttrl.errors import EnvError

GENERATOR = 1
"""Changes whenever the same seed gives other games."""


@dataclass(frozen=True, slots=True)
class Generated:
    """One game, not written yet."""

    goal: Goal
    trial: str
    game: Mapping[str, Any]
    """Content of `game.tw-pddl`."""
    trajectory: Mapping[str, Any]
    """Content of `traj_data.json`."""


def generated(split: str, seed: int, task_types: Sequence[str] = TASK_TYPES) -> Iterator[Generated]:
    """Games of one split without end, the types in turn. Each was solved, and played until it was won."""
    ontology = read_ontology()
    series = [_of_type(ontology, split, task_type, seed) for task_type in task_types]
    while True:
        for games in series:
            yield next(games)


def _of_type(ontology: Ontology, split: str, task_type: str, seed: int) -> Iterator[Generated]:
    for goal, before in goal_series(split, task_type, seed):
        rng = random.Random(f"game {seed} {split} {goal.folder} {before}")
        state = furnish(ontology, read_floor_plan(goal.scene), goal, rng)
        if state is None:  # six goals of 16,400: all places that take the thing are of the kind it is to go to
            continue
        yield _make(ontology, state, goal, f"trial_G{seed}_{before + 1:04d}", rng)


def _make(ontology: Ontology, state: WorldState, goal: Goal, trial: str, rng: random.Random) -> Generated:
    problem = write_problem(ontology, state, goal, trial)
    words = rng.choice(ontology.sentences[goal.task_type]).format(
        obj=goal.object.lower(), recep=goal.target.lower(), toggle=goal.target.lower()
    )
    grammar = ontology.grammar.replace("UNKNOWN GOAL", words)
    texts, task = read_grammar(grammar)
    world = build_world(read_problem(problem), texts, task)
    walkthrough = solve(world)
    engine = FastEngine(world)
    won = [engine.reset().won, *(engine.step(command).won for command in walkthrough)]
    if any(won[:-1]) or not won[-1]:
        raise AssertionError(f"{goal.folder} is not won by its walkthrough, or before its end")
    game = {
        "pddl_domain": ontology.domain,
        "grammar": grammar,
        "pddl_problem": problem,
        "solvable": True,
        "walkthrough": list(walkthrough),
    }
    return Generated(goal, trial, game, _trajectory(goal, trial, words))


def _trajectory(goal: Goal, trial: str, words: str) -> dict[str, Any]:
    """Return the `traj_data.json` of a game, as ALFRED has it: only the fields that the package's experts and its game collector read."""
    light = goal.task_type == "look_at_obj_in_light"
    return {
        "task_id": trial,
        "task_type": goal.task_type,
        "pddl_params": {
            "mrecep_target": "",
            "object_sliced": False,
            "object_target": goal.object,
            "parent_target": "" if light else goal.target,
            "toggle_target": goal.target if light else "",
        },
        "scene": {"floor_plan": f"FloorPlan{goal.scene}", "scene_num": goal.scene},
        "turk_annotations": {"anns": [{"high_descs": [], "task_desc": f"{words}."}]},
    }


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
