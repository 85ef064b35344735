"""Forms of actions: what a policy writes and the environment's action, in both directions."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skill_ttrl.agents.action_parser import ActionList, by_words, projection
from skill_ttrl.agents.agent import Agent, AgentInput, PromptFormatter
from skill_ttrl.agents.observations import WORDS, Form, FormActions, Slot, alfworld, alfworld_reach, find_observations
from skill_ttrl.agents.turn_prompt import TurnPromptBuilder
from skill_ttrl.errors import ConfigError, ExtensionError
from skill_ttrl.prompts.templates import Templates
from skill_ttrl.types import Completion, Skill, Step

ASKED: list[AgentInput] = []

NAMES = st.sampled_from(["buy", "back", "result 1", "result 2", "page 1"])

TEXTS = st.sampled_from(["click[buy now]", "click[< prev]", "click[b09x]", "click[b01]", "click[red]"])

SLOT = Slot("search " + WORDS, f"search[{WORDS}]", {"word 1": "red", "word 2": "shoe", "word 12": "size", "new": "new"})

DONE = Completion("door  1", (), (), "stop")


def observe(scene: AgentInput) -> str:
    return scene.observation.upper()


def actions(scene: AgentInput) -> FormActions:
    """Doors by number, and a question."""
    ASKED.append(scene)
    doors = {f"door {place}": text for place, text in enumerate(scene.admissible_actions, start=1) if "<" not in text}
    return FormActions(doors, SLOT if "search[<your query>]" in scene.admissible_actions else None)


FORM = Form(observe, actions, ("door 1 door 2", "search word 1"))

LISTED = ("open left", "open right", "search[<your query>]")

SCENE = AgentInput("Doors.", admissible_actions=LISTED)


def agent(project: str = "none", **how: Any) -> Agent:
    return Agent(PromptFormatter("plain"), project=projection(project), form=FORM, **how)


@given(st.dictionaries(NAMES, TEXTS), st.lists(st.sampled_from(sorted(SLOT.words)), min_size=1, max_size=6))
def test_what_is_written_is_read_again(listed: dict[str, str], words: list[str]) -> None:
    form = FormActions(listed, SLOT)
    for action in listed.values():
        written = form.write(action)
        assert written in form.choices and form.read(written) == action
    query = f"search[{' '.join(SLOT.words[word] for word in words)}]"
    said = f"search {' '.join(words)}"
    assert form.read(said) == form.read(f"  search   {'  '.join(words)} ") == query
    written = form.write(query)
    assert written == said and form.slot_words == tuple(SLOT.words)


def test_a_query_is_written_in_the_words_that_there_are() -> None:
    form = FormActions({}, SLOT)
    assert form.write("search[red running shoe]") == "search word 1 word 2"
    assert form.write("search[running]") is form.write("search[]") is form.write("look") is None
    assert FormActions({}, Slot("ask " + WORDS, f"ask[{WORDS}]", {})).choices == ()


def test_an_agent_writes_and_reads_its_form() -> None:
    assert agent().choices(SCENE) == (("door 1", "door 2", "search <words>"), ("word 1", "word 2", "word 12", "new"))
    assert agent().answer("open right", SCENE) == "door 2" and agent().answer("look", SCENE) is None
    assert agent().answer("search[red]", SCENE) == "search word 1"
    plain = Agent(PromptFormatter("plain"))
    assert plain.choices(SCENE) == (LISTED, ()) and plain.answer("look", SCENE) == "look"


@pytest.mark.parametrize(
    ("project", "written", "action", "verdict"),
    [
        ("none", "door 2", "open right", "valid"),
        ("none", "search word 2 word 1", "search[shoe red]", "valid"),
        ("none", "door 3", "door 3", "invalid"),
        ("none", "open right", "open right", "invalid"),
        ("none", "search blue", "search blue", "invalid"),
        ("none", "", "", "invalid"),
        ("action", "<action>door 1</action>", "open left", "valid"),
        ("action", "<action>Door 1.</action>", "open left", "repaired"),
        ("action", "<action>search new</action>", "search[new]", "valid"),
        ("action", "<action>search <words></action>", "search <words>", "invalid"),
        ("action", "<action>open left</action>", "open left", "invalid"),
        ("action", "door 1", "open left", "repaired"),
    ],
)
def test_what_cannot_be_read_is_played_as_it_is(project: str, written: str, action: str, verdict: str) -> None:
    found = agent(project).read(written, SCENE)
    assert (found.action, found.action_status) == (action, verdict) and bool(found.parse_error) == (verdict != "valid")


def test_earlier_turns_are_shown_as_they_were_written() -> None:
    done = (
        Step("A hall.", "open right", 0.0, False, False, admissible_actions=LISTED),
        Step("A room.", "jump", 0.0, False, False, admissible_actions=LISTED),
        Step("A loft.", "open left", 0.0, False, False, admissible_actions=LISTED, completion=DONE),
    )
    scene = replace(SCENE, steps=done)
    said = agent().prompt(scene).messages
    assert [each.content for each in said] == ["A HALL.", "door 2", "A ROOM.", "jump", "A LOFT.", "door  1", "DOORS."]
    turns = TurnPromptBuilder(Templates(None), "episode", history=3)
    shown = agent("action", memory="window", window=turns).prompt(scene).messages[-1].content
    assert "door 2" in shown and "search <words>" in shown.replace("&lt;", "<").replace("&gt;", ">")
    assert "A ROOM." in shown and "open right" not in shown
    assert agent("action", memory="window", window=turns).read("<action>door 2</action>", scene).action == "open right"


A_LIST, A_CLASS, NO_FORM = ["door"], Form, Form(observe, ["door"])  # type: ignore[arg-type]

NO_TEXT, NO_ACTIONS = Form(lambda scene: 3), Form(observe, lambda scene: {"door": "open"})  # type: ignore[arg-type,return-value]

BROKEN = Form(observe, lambda scene: FormActions({scene.steps[7].action: ""}))


def named(attribute: str) -> Form | None:
    return find_observations(f"tests.unit.agents.test_forms:{attribute}")


@pytest.mark.parametrize("wrong", ["A_LIST", "A_CLASS", "NO_FORM"])
def test_what_is_no_form_is_refused(wrong: str) -> None:
    with pytest.raises(ConfigError, match=r"agent\.observations=tests\.unit\.agents\.test_forms:"):
        named(wrong)


def test_what_a_form_gives_is_looked_at() -> None:
    text, made, broken = named("NO_TEXT"), named("NO_ACTIONS"), named("BROKEN")
    assert text and made and made.actions and broken and broken.actions
    with pytest.raises(ConfigError, match="returned int instead of str"):
        text.observe(SCENE)
    with pytest.raises(ConfigError, match="returned dict instead of FormActions"):
        made.actions(SCENE)
    with pytest.raises(ExtensionError, match=r"form of observations .* failed: IndexError"):
        broken.actions(SCENE)


STEPS = Skill("s", "Steps", "`take X from ...`, then `go to sinkbasin`, then `clean X with sinkbasin`")


def test_what_the_task_names_as_a_whole_comes_first_then_in_part_then_what_skills_name() -> None:
    held = ("go to desk 1", "move mug 1 to shelf 1", "go to sinkbasin 1", "move mug 1 to desk 1", "look")
    found = by_words(held, "put a clean mug in desk", [STEPS])
    assert found == ("move mug 1 to desk 1", "go to desk 1", "move mug 1 to shelf 1", "go to sinkbasin 1", "look")


def test_after_something_was_done_to_what_the_task_names_places_count_anew() -> None:
    task = "put a clean mug in drawer"
    done = ["go to drawer 1", "go to shelf 1", "take mug 1 from shelf 1"]
    listed = ("go to drawer 1", "go to sinkbasin 1", "go to shelf 2")
    assert by_words(listed, task, [STEPS], done)[0] == "go to drawer 1"
    assert by_words(listed, task, [STEPS], done[:2])[-1] == "go to drawer 1"


def test_verbs_may_stay_unlisted_and_a_place_for_words_is_filled_with_the_task_s() -> None:
    listing = ActionList(unlisted=frozenset({"examine", "help"}), filled=True)
    assert listing(("help", "examine shelf 1", "go to shelf 2"), "x") == ("go to shelf 2",)
    assert listing(("help",), "x") == ("help",)
    assert listing(("search[<your query>]", "click[a]"), "a [red] <b>") == ("search[a red b]", "click[a]")
    assert listing(("search[<your query>]",), "") == ("search[<your query>]",)


@given(st.lists(st.text(max_size=30)), st.text(max_size=40), st.lists(st.text(max_size=30)))
def test_nothing_is_lost_or_added_whatever_is_written(actions: list[str], task: str, done: list[str]) -> None:
    skill = Skill("s", "", task)
    assert sorted(by_words(actions, task, [skill], done)) == sorted(actions)
    assert ActionList()(actions, task) == tuple(actions)


CASES = json.loads((Path(__file__).parents[2] / "data" / "action_cases.json").read_text("utf-8"))

WELCOME = (
    "-= Welcome to TextWorld, ALFRED! =-\n\nYou are in the middle of a room. Looking quickly around you, you see a armchair 2, "
    "a armchair 1, and a sofa 1.\n\nYour task is to: {}."
)

OBSERVED = [Step("before", "go to sofa 1", 0.0, False, False)]


@pytest.mark.parametrize(("task", "words"), CASES["tasks"])
def test_the_first_has_the_task_and_the_room(task: str, words: str) -> None:
    said = AgentInput(WELCOME.format(task))
    assert alfworld(said) == f"<task> {words} <room> armchair 2 armchair 1 sofa 1"


@pytest.mark.parametrize(("said", "written"), CASES["observations"])
def test_a_later_one_has_what_is_seen_or_one_word(said: str, written: str) -> None:
    assert alfworld(AgentInput(said, OBSERVED)) == written


def test_what_is_within_reach_is_named_where_one_of_several_was_gone_to() -> None:
    room = WELCOME.format("put a mug in sofa").replace("a armchair 2, a armchair 1", "a desk 1, a drawer 2, a drawer 1")
    possible: tuple[str, ...] = (
        "close drawer 1", "examine desk 1", "examine drawer 1", "examine drawer 2", "go to sofa 1", "look",
    )  # fmt: skip
    possible += ("open drawer 2", "take cd 1 from drawer 1", "take mug 1 from desk 1", "take book 1 from desk 1")
    gone = [Step(room, "go to drawer 2", 0.0, False, False)]
    closed = "You arrive at drawer 2. The drawer 2 is closed."
    found = alfworld_reach(AgentInput(closed, gone, admissible_actions=possible))
    assert found == "closed desk 1 book 1 mug 1 drawer 1 cd 1"
    held = (*(each for each in possible if not each.startswith("take")), "examine mug 3")
    assert alfworld_reach(AgentInput(closed, gone, admissible_actions=held)) == "closed desk 1 drawer 1"
    assert alfworld_reach(AgentInput("Nothing happens.", gone, admissible_actions=possible)) == "fail"
    opened = [Step(room, "open drawer 1", 0.0, False, False)]
    assert (
        alfworld_reach(AgentInput("You open it. In it, you see a cd 1.", opened, admissible_actions=possible)) == "cd 1"
    )
    assert (
        alfworld_reach(AgentInput(room))
        == alfworld(AgentInput(room))
        == "<task> put mug in sofa <room> desk 1 drawer 2 drawer 1 sofa 1"
    )
