"""What the engine promises of a household, in a kitchen written by hand; and game files that are not what they say."""

from __future__ import annotations

import importlib.util
import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.alfworld_official import OfficialEngine
from benchmarks.alfworld_walks import walk
from skill_ttrl.envs.alfworld.engine import NOTHING, FastEngine, Frame
from skill_ttrl.envs.alfworld.games import load_game, read_content
from skill_ttrl.errors import EnvError
from tests.alfworld_kitchen import DONE, LIGHT, PLACE, TWO, content, kitchen, odd_problem, play, problem, write_game


@pytest.fixture
def engine() -> FastEngine:
    return kitchen()


def test_commands_are_sorted_and_all_of_them_are_there(engine: FastEngine) -> None:
    assert play(engine, "go to countertop 2").commands == (
        "examine countertop 2",
        "examine microwave 1",
        "go to cabinet 1",
        "go to countertop 1",
        "go to fridge 1",
        "go to sinkbasin 1",
        "help",
        "inventory",
        "look",
        "open microwave 1",
        "take knife 1 from countertop 2",
        "take mug 1 from countertop 2",
    )


@pytest.mark.parametrize(
    "command", ["Look", "LOOK", "look around", "", "go to", "go to fridge 2", "go  to fridge 1", "put"]
)
def test_what_is_not_admissible_changes_nothing(engine: FastEngine, command: str) -> None:
    before = play(engine, "go to countertop 1")
    after = engine.step(command)
    assert after == Frame(NOTHING, before.commands, False)


TAKE = ("go to countertop 1", "take apple 1 from countertop 1")
INTO_THE_FRIDGE = ("go to fridge 1", "open fridge 1", "move apple 1 to fridge 1")


@pytest.mark.parametrize(
    ("goal", "commands"),
    [
        (PLACE.format("Apple", "Fridge"), (*TAKE, *INTO_THE_FRIDGE)),
        (
            DONE.format(able="cleanable", done="isClean", thing="Apple", target="Fridge"),
            (*TAKE, "go to sinkbasin 1", "clean apple 1 with sinkbasin 1", *INTO_THE_FRIDGE),
        ),
        (
            DONE.format(able="heatable", done="isHot", thing="Apple", target="Fridge"),
            (*TAKE, "go to microwave 1", "heat apple 1 with microwave 1", *INTO_THE_FRIDGE),
        ),
        (
            DONE.format(able="coolable", done="isCool", thing="Apple", target="CounterTop"),
            (*TAKE, "go to fridge 1", "cool apple 1 with fridge 1", "go to countertop 2", "move apple 1 to countertop 2"),
        ),
        (
            TWO.format("Mug", "CounterTop"),
            (
                "go to cabinet 1", "open cabinet 1", "take mug 2 from cabinet 1", "go to countertop 2",
                "move mug 2 to countertop 2",
            ),
        ),
        (LIGHT.format("Apple", "DeskLamp"), (*TAKE, "use desklamp 1")),
    ],
    ids=["place", "clean", "heat", "cool", "two", "light"],
)  # fmt: skip
def test_a_game_of_each_kind_is_won_by_its_last_step_and_by_none_before(goal: str, commands: tuple[str, ...]) -> None:
    engine = kitchen(goal)
    assert not any(play(engine, *commands[:steps]).won for steps in range(len(commands)))
    assert play(engine, *commands).won


def test_the_games_own_wording_is_used() -> None:
    grammar = (
        content()["grammar"].replace('"move {o} to {r}"', '"put {o} in/on {r}"').replace("You move the", "You put the")
    )
    engine = kitchen(grammar=grammar)
    frame = play(engine, *TAKE)
    assert "put apple 1 in/on countertop 1" in frame.commands and "move apple 1 to countertop 1" not in frame.commands
    assert engine.step("put apple 1 in/on countertop 1").feedback == "You put the apple 1 to the countertop 1."


@given(st.lists(st.text(st.characters(exclude_categories=())), max_size=5))
def test_any_text_is_a_command(texts: list[str]) -> None:
    engine = kitchen()
    before = play(engine, "go to countertop 1")
    for text in texts:
        frame = engine.step(text)
        if text.strip() not in before.commands:
            assert frame == Frame(NOTHING, before.commands, False)
        before = frame


@given(st.data())
def test_every_listed_command_does_something_and_a_game_begins_the_same_again(data: st.DataObject) -> None:
    engine = kitchen()
    start = frame = engine.reset()
    for _ in range(data.draw(st.integers(1, 30))):
        frame = engine.step(data.draw(st.sampled_from(frame.commands)))
        assert frame.feedback != NOTHING
        assert list(frame.commands) == sorted(set(frame.commands))
    assert engine.reset() == start


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["random-2", "nonsense"])
def test_this_kitchen_is_the_same_to_the_official_engine(tmp_path: Path, kind: str) -> None:
    if importlib.util.find_spec("textworld") is None:  # importing alfworld to find out would set $ALFWORLD_DATA
        pytest.skip("needs the package textworld")
    more = "(opened Fridge_bar_1) (isClean Apple_bar_1) (isReceptacleObject Mug_bar_2) (inReceptacleObject Egg_bar_1 Mug_bar_2)"
    path = write_game(tmp_path, "train", "task/trial", pddl_problem=problem(LIGHT.format("Apple", "DeskLamp"), more))
    game = load_game(path)
    ours, theirs = (
        list(walk(engine, "kitchen", kind, game.walkthrough))
        for engine in (FastEngine(game.world), OfficialEngine(path))
    )
    assert ours == theirs


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "cannot be read: Expecting value"),
        ('{"pddl_domain": "(define', "cannot be read: Unterminated string.*copy or unpack it again"),
        ("[" * 100_000, "cannot be read"),
        ("[]", "has no 'pddl_domain'"),
        ("{}", "has no 'pddl_domain'"),
        (json.dumps({"pddl_domain": "", "grammar": "", "pddl_problem": "", "walkthrough": 3}), "has no 'walkthrough'"),
        ('{"pddl_domain": "\\ud800", "grammar": "", "pddl_problem": "", "walkthrough": []}', "has no 'pddl_domain' that is Unicode text"),
    ],
    ids=["empty", "cut off", "deep", "list", "nothing in it", "walkthrough", "surrogate"],
)  # fmt: skip
def test_a_file_that_is_no_game_is_named(tmp_path: Path, text: str, said: str) -> None:
    path = write_game(tmp_path, "train", "task/trial", text)
    with pytest.raises(EnvError, match=f"The game {re.escape(str(path))} {said}"):
        load_game(path)


def change(field: str, old: str, new: str) -> dict[str, Any]:
    value = content()[field]
    assert old in value
    return {field: value.replace(old, new, 1)}


@pytest.mark.parametrize(
    ("field", "old", "new", "said"),
    [
        ("pddl_domain", "(holds ?a ?o)", "(holds ?o ?a)", "its domain is not ALFWorld's alfred.pddl"),
        ("grammar", "openable(r:receptacle) & opened(r:receptacle)", "opened(r:receptacle)", "the structure of its grammar differs"),
        ("grammar", '"task"', '"errand"', "its grammar has no task"),
        ("grammar", '"rhs": "You are not', '"lhs": "You are not', "'inventory.feedback' of its grammar is not a list of texts"),
        ("grammar", '"You are not', "You are not", "its grammar cannot be read"),
        ("grammar", "put an apple", "\\ud800", "the task in its grammar is no Unicode text"),
        ("pddl_problem", "(:goal", "(:gaol", "has no whole .*goal"),
        ("pddl_problem", "(sliceable Apple_bar_1)", "(sliceable Apple_bar_1", "has no whole"),
        ("pddl_problem", "(sliceable Apple_bar_1)", "(holds agent1 Apple_bar_1)", "its agent starts with an object in its hand"),
        ("pddl_problem", "(openable Fridge_bar_1)", "(receptacleAtLocation Fridge_bar_1 loc_5)", "its fridge 1 stands in 2 places"),
        ("pddl_problem", "(and (inReceptacle", "(or (inReceptacle", "its goal is none of ALFRED's six kinds"),
    ],
)  # fmt: skip
def test_a_game_that_the_engine_does_not_know_is_refused_with_its_path(
    field: str, old: str, new: str, said: str
) -> None:
    with pytest.raises(EnvError, match=f"The game a/b cannot be played: .*{said}"):
        read_content(Path("a/b"), content(**change(field, old, new)))


def test_a_game_with_facts_that_make_no_sense_is_refused_or_played() -> None:
    """Whatever is read can be played to any end."""
    rng = random.Random(0)
    read = 0
    for _ in range(150):
        text = odd_problem(rng)
        try:
            engine = FastEngine(read_content(Path("a/b"), content(pddl_problem=text)).world)
        except EnvError:
            continue
        read += 1
        frame = engine.reset()
        for _ in range(30):
            frame = engine.step(rng.choice(frame.commands))
    assert read > 50


def test_the_same_state_leads_to_the_same_frames_whatever_led_to_it(engine: FastEngine) -> None:
    rng = random.Random(0)
    seen: dict[tuple[str, str], tuple[Frame, str]] = {}
    met = 0
    for _ in range(60):
        frame = engine.reset()
        for _ in range(60):
            before = engine.state(), rng.choice(frame.commands)
            frame = engine.step(before[1])
            met += before in seen
            assert seen.setdefault(before, (frame, engine.state())) == (frame, engine.state())
    assert met > 500 and len({state for state, _ in seen}) > 200
