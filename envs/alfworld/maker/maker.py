"""One game after another: a goal, a room for it, its walkthrough, and what stands in its files.

Nothing here is written. The same seed gives the same games on every machine, and the first games of a series do not depend on
its length.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from skill_ttrl.envs.alfworld.engine import FastEngine
from skill_ttrl.envs.alfworld.game import TASK_TYPES
from skill_ttrl.envs.alfworld.grammar import read_grammar
from skill_ttrl.envs.alfworld.maker.goals import Goal, goal_series
from skill_ttrl.envs.alfworld.maker.ontology import Ontology, read_floor_plan, read_ontology
from skill_ttrl.envs.alfworld.maker.room import WorldState, furnish, write_problem
from skill_ttrl.envs.alfworld.maker.solve import solve
from skill_ttrl.envs.alfworld.problem import read_problem
from skill_ttrl.envs.alfworld.world import build_world

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
