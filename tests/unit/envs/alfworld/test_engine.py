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

from benchmarks.alfworld_walks import walk
from skill_ttrl.envs.alfworld.engine import NOTHING, FastEngine
from skill_ttrl.envs.alfworld.frame import Frame
from skill_ttrl.envs.alfworld.game import load_game, read_content, read_game_file
from skill_ttrl.envs.alfworld.official import OfficialEngine
from skill_ttrl.errors import EnvError
from tests.alfworld_kitchen import DONE, LIGHT, PLACE, TWO, content, kitchen, odd_problem, play, problem, write_game


@pytest.fixture
def engine() -> FastEngine:
    return kitchen()


def test_the_introduction_shows_the_room_by_id_and_states_the_task(engine: FastEngine) -> None:
    frame = engine.reset()
    assert frame.feedback == (
        "-= Welcome to TextWorld, ALFRED! =-\n\nYou are in the middle of a room. Looking quickly around you, you see a cabinet 1, "
        "a countertop 2, a countertop 1, a fridge 1, a microwave 1, and a sinkbasin 1.\n\n"
        "Your task is to: put an apple in the fridge."
    )
    assert not frame.won


def test_numbers_are_given_to_the_highest_id_first(engine: FastEngine) -> None:
    # CounterTop_bar_2 holds the apple, Mug_bar_1 is in the cabinet.
    assert "an apple" not in play(engine, "go to countertop 1").feedback
    assert play(engine, "go to countertop 1").feedback.endswith("you see a apple 1, a desklamp 1, and a egg 1.")
    assert play(engine, "go to cabinet 1", "open cabinet 1").feedback.endswith("In it, you see a mug 2.")


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


def test_a_look_from_the_middle_shows_nothing_though_the_introduction_shows_all(engine: FastEngine) -> None:
    engine.reset()
    assert engine.step("look").feedback.endswith("Looking quickly around you, you see nothing.")


def test_a_closed_door_hides_and_holds_back_what_is_inside(engine: FastEngine) -> None:
    frame = play(engine, "go to cabinet 1")
    assert frame.feedback == "You arrive at cabinet 1. The cabinet 1 is closed."
    assert not any("mug" in command for command in frame.commands)
    opened = play(engine, "go to cabinet 1", "open cabinet 1")
    assert "take mug 2 from cabinet 1" in opened.commands and "close cabinet 1" in opened.commands


def test_heating_works_with_the_microwave_closed_and_putting_in_does_not(engine: FastEngine) -> None:
    frame = play(engine, "go to countertop 1", "take apple 1 from countertop 1", "go to microwave 1")
    assert "heat apple 1 with microwave 1" in frame.commands and "move apple 1 to microwave 1" not in frame.commands
    assert engine.step("heat apple 1 with microwave 1").feedback == "You heat the apple 1 using the microwave 1."
    assert engine.step("examine apple 1").feedback == "This is a hot apple 1."


def test_cooling_takes_the_heat_and_heating_the_cold_and_cleaning_leaves_both(engine: FastEngine) -> None:
    play(
        engine,
        "go to countertop 1",
        "take apple 1 from countertop 1",
        "go to microwave 1",
        "heat apple 1 with microwave 1",
    )
    engine.step("go to sinkbasin 1")
    engine.step("clean apple 1 with sinkbasin 1")
    assert engine.step("examine apple 1").feedback == "This is a hot and clean apple 1."
    engine.step("go to fridge 1")
    engine.step("cool apple 1 with fridge 1")
    assert engine.step("examine apple 1").feedback == "This is a cool and clean apple 1."
    engine.step("go to microwave 1")
    engine.step("heat apple 1 with microwave 1")
    assert engine.step("examine apple 1").feedback == "This is a hot and clean apple 1."


def test_only_what_is_held_can_be_examined(engine: FastEngine) -> None:
    frame = play(engine, "go to countertop 1")
    assert "examine apple 1" not in frame.commands
    assert "examine apple 1" in engine.step("take apple 1 from countertop 1").commands


def test_one_thing_is_carried_at_a_time(engine: FastEngine) -> None:
    frame = play(engine, "go to countertop 1", "take apple 1 from countertop 1")
    assert not any(command.startswith("take") for command in frame.commands)
    assert engine.step("inventory").feedback == "You are carrying: a apple 1."


def test_a_receptacle_takes_only_what_it_is_made_for(engine: FastEngine) -> None:
    frame = play(engine, "go to countertop 1", "take apple 1 from countertop 1", "go to cabinet 1", "open cabinet 1")
    assert "move apple 1 to cabinet 1" not in frame.commands


def test_what_is_in_two_receptacles_leaves_one_at_a_time(engine: FastEngine) -> None:
    frame = play(engine, "go to fridge 1", "open fridge 1", "take egg 1 from fridge 1", "go to countertop 1")
    assert "a egg 1" in frame.feedback  # the hand has it, and the countertop still
    frame = play(engine, "go to countertop 1", "take egg 1 from countertop 1", "move egg 1 to countertop 1", "look")
    frame = engine.step("examine countertop 1")
    assert frame.feedback.count("egg 1") == 1


def test_what_is_taken_and_put_down_beside_shows_next_to_it(engine: FastEngine) -> None:
    before = play(engine, "go to countertop 2", "look").feedback
    assert before.endswith("Next to it, you see nothing.")
    play(engine, "go to countertop 2", "take mug 1 from countertop 2", "open microwave 1", "move mug 1 to microwave 1")
    assert engine.step("look").feedback == (
        "You are facing the countertop 2, and microwave 1. Next to it, you see a mug 1."
    )
    engine.step("take mug 1 from microwave 1")
    engine.step("move mug 1 to countertop 2")
    assert engine.step("look").feedback.endswith("Next to it, you see a mug 1.")  # from the microwave's side now


def test_a_knife_slices_what_lies_at_the_same_place(engine: FastEngine) -> None:
    frame = play(engine, "go to countertop 2", "take knife 1 from countertop 2", "go to countertop 1")
    assert "slice apple 1 with knife 1" in frame.commands
    engine.step("slice apple 1 with knife 1")
    assert "slice apple 1 with knife 1" not in engine.step("go to fridge 1").commands


def test_a_lamp_is_never_turned_off(engine: FastEngine) -> None:
    play(engine, "go to countertop 1")
    frames = [engine.step("use desklamp 1") for _ in range(2)]
    assert frames[0].feedback == "You turn on the desklamp 1."
    assert all("use desklamp 1" in frame.commands for frame in frames)


@pytest.mark.parametrize(
    "command", ["Look", "LOOK", "look around", "", "go to", "go to fridge 2", "go  to fridge 1", "put"]
)
def test_what_is_not_admissible_changes_nothing(engine: FastEngine, command: str) -> None:
    before = play(engine, "go to countertop 1")
    after = engine.step(command)
    assert after == Frame(NOTHING, before.commands, False)


def test_white_space_around_a_command_means_nothing(engine: FastEngine) -> None:
    engine.reset()
    assert engine.step(" \t go to fridge 1 \n").feedback == "You arrive at fridge 1. The fridge 1 is closed."


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


def test_hot_and_put_there_before_does_not_count_for_another_thing_of_the_kind() -> None:
    goal = DONE.format(able="heatable", done="isHot", thing="Mug", target="Cabinet")
    assert not kitchen(goal).reset().won  # a cold mug is in the cabinet
    assert kitchen(goal, more="(isHot Mug_bar_1)").reset().won
    assert not kitchen(goal, more="(isHot Mug_bar_2)").reset().won


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
        ("[]", "is no JSON object"),
        ("{}", "has no 'pddl_domain'"),
        (json.dumps({"pddl_domain": "", "grammar": "", "pddl_problem": "", "walkthrough": 3}), "has no 'walkthrough'"),
        ('{"pddl_domain": "\\ud800", "grammar": "", "pddl_problem": "", "walkthrough": []}', "is no Unicode text in 'pddl_domain'"),
    ],
    ids=["empty", "cut off", "deep", "list", "nothing in it", "walkthrough", "surrogate"],
)  # fmt: skip
def test_a_file_that_is_no_game_is_named(tmp_path: Path, text: str, said: str) -> None:
    path = write_game(tmp_path, "train", "task/trial", text)
    with pytest.raises(EnvError, match=f"The game {re.escape(str(path))} {said}"):
        load_game(path)


def test_a_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    path = write_game(tmp_path, "train", "task/trial")
    path.write_bytes(b"\xff\xfe\xff")
    with pytest.raises(EnvError, match=f"The game {re.escape(str(path))} cannot be read"):
        load_game(path)
    with pytest.raises(EnvError, match="There is no game"):
        load_game(tmp_path / "nowhere")


def change(field: str, old: str, new: str) -> dict[str, Any]:
    value = content()[field]
    assert old in value
    return {field: value.replace(old, new, 1)}


@pytest.mark.parametrize(
    ("field", "old", "new", "said"),
    [
        ("pddl_domain", "(holds ?a ?o)", "(holds ?o ?a)", "its domain is not ALFWorld's alfred.pddl"),
        ("grammar", "openable(r:receptacle) & opened(r:receptacle)", "opened(r:receptacle)", "built in another way"),
        ("grammar", '"task"', '"errand"', "its grammar has no task"),
        ("grammar", '"rhs": "You are not', '"lhs": "You are not', "'inventory.feedback' of its grammar is no list of texts"),
        ("grammar", '"You are not', "You are not", "its grammar cannot be read"),
        ("grammar", "put an apple", "\\ud800", "the task in its grammar is no Unicode text"),
        ("pddl_problem", "(:goal", "(:gaol", "has no .*goal"),
        ("pddl_problem", "(sliceable Apple_bar_1)", "(sliceable Apple_bar_1", "the brackets"),
        ("pddl_problem", "(sliceable Apple_bar_1)", "(sliceable Pear_bar_1)", "'pear_bar_1', which is not declared"),
        ("pddl_problem", "(sliceable Apple_bar_1)", "(not (sliceable Apple_bar_1))", r"an expression: \(not \("),
        ("pddl_problem", "(sliceable Apple_bar_1)", "(sliceable)", "a fact 'sliceable' has not 1 argument"),
        ("pddl_problem", "(inReceptacle Apple_bar_1 ", "(inReceptacle ", "a fact 'inreceptacle' has not 2 arguments"),
        ("pddl_problem", "(atLocation agent1 loc_0)", "(atLocation agent1 MugType)", r"\(atlocation agent1 mugtype\) is not about agent and location"),
        ("pddl_problem", "(receptacleAtLocation Fridge_bar_1 loc_3)", "(receptacleAtLocation Apple_bar_1 loc_3)", "is not about receptacle and"),
        ("pddl_problem", "(sliceable Apple_bar_1)", "(holds agent1 Apple_bar_1)", "its agent begins with something in its hand"),
        ("pddl_problem", "(atLocation agent1 loc_0)", "", "its agent stands in 0 places"),
        ("pddl_problem", "(openable Fridge_bar_1)", "(receptacleAtLocation Fridge_bar_1 loc_5)", "its fridge 1 stands in 2 places"),
        ("pddl_problem", "(receptacleAtLocation Fridge_bar_1 loc_3)", "", "its fridge 1 stands in 0 places"),
        ("pddl_problem", "(and (inReceptacle", "(or (inReceptacle", "its goal is none of ALFRED's six kinds"),
    ],
)  # fmt: skip
def test_a_game_that_the_engine_does_not_know_is_refused_with_its_path(
    field: str, old: str, new: str, said: str
) -> None:
    with pytest.raises(EnvError, match=f"The game a/b cannot be played by the fast engine: .*{said}"):
        read_content(Path("a/b"), content(**change(field, old, new)))


def test_a_name_that_is_a_slot_is_refused() -> None:
    text = problem().replace("Apple_bar_1", "{r}_bar_1")
    with pytest.raises(EnvError, match=r"'\{r\}_bar_1' is no name of a thing"):
        read_content(Path("a/b"), content(pddl_problem=text))


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


def test_two_things_of_one_name_are_refused() -> None:
    text = problem().replace("Knife_bar_1", "Knife").replace("Apple_bar_1", "Apple").replace("AppleType", "KnifeType")
    text = text.replace(" Apple ", " kni_minus_fe ").replace(" Apple)", " kni_minus_fe)").replace("Knife", "kni-fe")
    with pytest.raises(EnvError, match="2 of its things are called 'kni-fe '"):
        read_content(Path("a/b"), content(pddl_problem=text))


def test_the_walkthrough_is_taken_as_text(tmp_path: Path) -> None:
    path = write_game(tmp_path, "train", "task/trial", walkthrough=None)
    assert load_game(path).walkthrough == ()
    assert read_game_file(path)["walkthrough"] is None


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


def test_a_state_is_left_and_returned_to(engine: FastEngine) -> None:
    play(engine, "go to countertop 1")
    there = engine.state()
    for command, same in (
        ("look", True),
        ("nonsense", True),
        ("take apple 1 from countertop 1", False),
        ("move apple 1 to countertop 1", True),
        ("go to fridge 1", False),
        ("open fridge 1", False),
        ("go to countertop 1", False),
    ):
        engine.step(command)
        assert (engine.state() == there) == same, command
    play(engine, "go to fridge 1", "open fridge 1", "close fridge 1", "go to countertop 1")
    assert engine.state() == there
