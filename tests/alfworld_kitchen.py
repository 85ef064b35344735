"""A kitchen of five places written by hand, in the words of the package alfworld, whose data files need no compiler.

loc_1  a countertop and, beside it, a closed microwave    a knife and a mug on the countertop
loc_2  another countertop                                 an apple, a lamp, and an egg that is in the fridge too
loc_3  a closed fridge                                    the egg
loc_4  a sink
loc_5  a closed cabinet                                   another mug
"""

from __future__ import annotations

import importlib.util
import json
import random
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from skill_ttrl.envs.alfworld.engine import FastEngine, Frame
from skill_ttrl.envs.alfworld.games import GAME_FILE, read_content

PLACES = {
    "CounterTop_bar_1": "loc_1", "Microwave_bar_1": "loc_1", "CounterTop_bar_2": "loc_2", "Fridge_bar_1": "loc_3",
    "Sink_bar_1_bar_SinkBasin": "loc_4", "Cabinet_bar_1": "loc_5",
}  # fmt: skip
CONTENTS = {
    "Knife_bar_1": ["CounterTop_bar_1"], "Mug_bar_2": ["CounterTop_bar_1"], "Apple_bar_1": ["CounterTop_bar_2"],
    "DeskLamp_bar_1": ["CounterTop_bar_2"], "Egg_bar_1": ["CounterTop_bar_2", "Fridge_bar_1"], "Mug_bar_1": ["Cabinet_bar_1"],
}  # fmt: skip
OPENABLE = ("Microwave_bar_1", "Fridge_bar_1", "Cabinet_bar_1")
PLACE = "(and (exists (?r - receptacle) (exists (?o - object) (and (inReceptacle ?o ?r) (objectType ?o {}Type) (receptacleType ?r {}Type)))))"
DONE = (
    "(and (exists (?r - receptacle) (exists (?o - object) (and ({able} ?o) (objectType ?o {thing}Type) "
    "(receptacleType ?r {target}Type) ({done} ?o) (inReceptacle ?o ?r)))))"
)
TWO = (
    "(and (exists (?r - receptacle) (exists (?o1 - object) (and (objectType ?o1 {0}Type) (receptacleType ?r {1}Type) "
    "(inReceptacle ?o1 ?r) (exists (?o2 - object) (and (not (= ?o1 ?o2)) (objectType ?o2 {0}Type) (receptacleType ?r {1}Type) "
    "(inReceptacle ?o2 ?r)))))))"
)
LIGHT = (
    "(and (exists (?ot - object ?r - receptacle ?a - agent ?l - location) (and (objectType ?ot {1}Type) (toggleable ?ot) "
    "(isToggled ?ot) (receptacleAtLocation ?r ?l) (atLocation ?a ?l) (inReceptacle ?ot ?r))) "
    "(exists (?o - object ?a - agent) (and (objectType ?o {0}Type) (holds ?a ?o))))"
)
GOAL = PLACE.format("Apple", "Fridge")


def data_file(name: str) -> str:
    """A file of the package alfworld, which is not imported for it; skips the test without the package."""
    spec = importlib.util.find_spec("alfworld")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(
            "needs the data files of the package alfworld: pip install --no-deps alfworld", allow_module_level=True
        )
    return (Path(spec.submodule_search_locations[0]) / "data" / name).read_text(encoding="utf-8")


def problem(goal: str = GOAL, more: str = "") -> str:
    """The kitchen in PDDL, with more facts where wanted."""
    kinds = {thing: thing.partition("_bar_")[0] for thing in (*PLACES, *CONTENTS)}
    kinds["Sink_bar_1_bar_SinkBasin"] = "SinkBasin"
    food, dishes = ("Apple_bar_1", "Egg_bar_1"), ("Mug_bar_1", "Mug_bar_2")
    carried = (*food, *dishes, "Knife_bar_1")
    facts = [
        "atLocation agent1 loc_0",
        *(f"receptacleAtLocation {receptacle} {place}" for receptacle, place in PLACES.items()),
        *(f"receptacleType {receptacle} {kinds[receptacle]}Type" for receptacle in PLACES),
        *(f"objectType {thing} {kinds[thing]}Type" for thing in CONTENTS),
        *(f"inReceptacle {thing} {receptacle}" for thing, own in CONTENTS.items() for receptacle in own),
        *(f"objectAtLocation {thing} {PLACES[own[0]]}" for thing, own in CONTENTS.items()),
        *(f"openable {receptacle}" for receptacle in OPENABLE),
        *(f"pickupable {thing}" for thing in carried),
        *(f"{able} {thing}" for able in ("heatable", "coolable") for thing in (*food, *dishes)),
        *(f"cleanable {thing}" for thing in (*dishes, "Apple_bar_1", "Knife_bar_1")),
        "sliceable Apple_bar_1",
        "toggleable DeskLamp_bar_1",
        *(
            f"canContain {receptacle}Type {thing}Type"
            for receptacle in ("CounterTop", "Microwave", "Fridge", "SinkBasin", "Cabinet")
            for thing in ("Apple", "Egg", "Mug", "Knife")
            if (receptacle, thing) not in {("Cabinet", "Apple"), ("Microwave", "Knife")}
        ),
    ]
    named: dict[str, Iterable[str]] = {
        "object": CONTENTS,
        "receptacle": PLACES,
        "location": [f"loc_{number}" for number in range(6)],
        "agent": ["agent1"],
        "otype": {f"{kinds[thing]}Type" for thing in CONTENTS},
        "rtype": {f"{kinds[receptacle]}Type" for receptacle in PLACES},
    }
    declared = " ".join(f"{name} - {kind}" for kind, names in named.items() for name in names)
    lines = "\n".join(f"({fact})" for fact in facts)
    return f"(define (problem kitchen) (:domain alfred)\n(:objects {declared})\n(:init\n{lines}\n{more})\n(:goal {goal})\n)"


GOALS = (
    GOAL, PLACE.format("Egg", "CounterTop"), TWO.format("Mug", "CounterTop"), LIGHT.format("Apple", "DeskLamp"),
    DONE.format(able="heatable", done="isHot", thing="Mug", target="Cabinet"),
    DONE.format(able="coolable", done="isCool", thing="Apple", target="CounterTop"),
    DONE.format(able="cleanable", done="isClean", thing="Apple", target="Fridge"),
)  # fmt: skip


def odd_problem(rng: random.Random) -> str:
    """The kitchen with facts exchanged, doubled, left out and added: lamps in cupboards, food that is hot at the start."""
    text = problem(rng.choice(GOALS))
    for _ in range(rng.randint(1, 12)):
        facts = re.findall(r"\([^()]*\)", text[text.index("(:init") : text.index("(:goal")])
        fact = rng.choice(facts)
        words = fact[1:-1].split()
        other = rng.choice([each for each in facts if each.startswith(f"({words[0]} ")])[1:-1].split()
        changed = f"({' '.join([*words[:-1], other[-1]])})"
        thing = rng.choice([*CONTENTS])
        state = rng.choice("isHot isCool isClean isToggled isSliced sliceable toggleable pickupable heatable".split())
        new = rng.choice(
            [changed, f"{fact} {changed}", "", f"{fact} ({state} {thing})", f"{fact} (opened {rng.choice(OPENABLE)})"]
        )
        text = text.replace(fact, new, 1)
    return text


def content(task: str = "put an apple in the fridge", **changes: Any) -> dict[str, Any]:
    """The JSON of a game file."""
    return {
        "pddl_domain": data_file("alfred.pddl"),
        "grammar": data_file("alfred.twl2").replace("UNKNOWN GOAL", task),
        "pddl_problem": problem(),
        "solvable": True,
        "walkthrough": [
            "go to countertop 1",
            "take apple 1 from countertop 1",
            "go to fridge 1",
            "open fridge 1",
            "move apple 1 to fridge 1",
        ],
    } | changes


def kitchen(goal: str = GOAL, more: str = "", **changes: Any) -> FastEngine:
    """The kitchen, ready to be played."""
    game = content(**{"pddl_problem": problem(goal, more), **changes})
    return FastEngine(read_content(Path("kitchen"), game).world)


def play(engine: FastEngine, *commands: str) -> Frame:
    """The last frame after commands that must all do something."""
    frame = engine.reset()
    for command in commands:
        assert command in frame.commands, (command, frame)
        frame = engine.step(command)
    return frame


def write_game(root: Path, split: str, name: str, text: str | None = None, **changes: Any) -> Path:
    """A game file in the layout of the release: `root/json_2.1.1/split/name/game.tw-pddl`."""
    path = root / "json_2.1.1" / split / name / GAME_FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content(**changes)) if text is None else text, encoding="utf-8")
    return path


def walks(body: Mapping[str, Any], draw: random.Random) -> str:
    """Answer of a model: the next command of the walkthrough, by the number of the step that the prompt names."""
    said = body["messages"][-1]["content"]
    number = int(said.split("\nStep ", 1)[1].split(".", 1)[0])
    return f"<think>step {number}</think><action>{content()['walkthrough'][number - 1]}</action>"
