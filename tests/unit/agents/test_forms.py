"""Forms of actions: what a policy writes and the environment's action, in both directions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skill_ttrl.agents.action_parser import projection
from skill_ttrl.agents.agent import Agent, AgentInput, PromptFormatter
from skill_ttrl.agents.observations import WORDS, Form, FormActions, Slot, find_observations
from skill_ttrl.agents.turn_prompt import TurnPromptBuilder
from skill_ttrl.errors import ConfigError, ExtensionError
from skill_ttrl.prompts.templates import Templates
from skill_ttrl.types import Completion, Step

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
