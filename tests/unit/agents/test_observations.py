"""The compact form of ALFWorld's observations: what the engines say, as the things that it names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from skill_ttrl.agents.agent import AgentInput
from skill_ttrl.agents.observations import alfworld, alfworld_reach
from skill_ttrl.types import Step

CASES = json.loads((Path(__file__).parents[2] / "data" / "action_cases.json").read_text("utf-8"))
WELCOME = (
    "-= Welcome to TextWorld, ALFRED! =-\n\nYou are in the middle of a room. Looking quickly around you, you see a armchair 2, "
    "a armchair 1, and a sofa 1.\n\nYour task is to: {}."
)
DONE = [Step("before", "go to sofa 1", 0.0, False, False)]


@pytest.mark.parametrize(("task", "words"), CASES["tasks"])
def test_the_first_has_the_task_and_the_room(task: str, words: str) -> None:
    said = AgentInput(WELCOME.format(task))
    assert alfworld(said) == f"<task> {words} <room> armchair 2 armchair 1 sofa 1"


@pytest.mark.parametrize(("said", "written"), CASES["observations"])
def test_a_later_one_has_what_is_seen_or_one_word(said: str, written: str) -> None:
    assert alfworld(AgentInput(said, DONE)) == written


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
