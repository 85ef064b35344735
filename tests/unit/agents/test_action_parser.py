"""From a model's words to an action: what counts, what is repaired, and that hostile text gets no further than that."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skill_ttrl.agents.action_parser import LONGEST, answer_for, parse_numbered_action, project, projection
from skill_ttrl.types import content

ROOM = ("go to cabinet 1", "open cabinet 1", "take apple 2 from table 1", "look")
SHOP = ("search[<your query>]", "click[buy now]", "click[size <5]")
CASES = json.loads((Path(__file__).parents[2] / "data" / "action_cases.json").read_text("utf-8"))
"""What is written, in which list of actions, → what is played, with which verdict and complaint."""


@pytest.mark.parametrize(("written", "listed", "action", "verdict", "complaint"), CASES["meant"])
def test_what_is_meant_is_played_and_the_verdict_says_how_it_was_found(
    written: str, listed: str, action: str, verdict: str, complaint: str
) -> None:
    found = project(written, {"room": ROOM, "shop": SHOP, "nothing": ()}[listed])
    assert (found.action, found.action_status) == (action, verdict)
    assert complaint in found.parse_error and bool(complaint) == bool(found.parse_error)


def test_an_action_in_a_skill_that_the_model_writes_is_none() -> None:
    skill = "<skill_ops><generate>First <action>look</action>.</generate></skill_ops>"
    assert project(f"{skill}<action>open cabinet 1</action>", ROOM).action == "open cabinet 1"
    assert project(f"<think>{skill}</think>", ROOM).action == ""
    assert project(f"{skill}open cabinet 1", ROOM).action == "open cabinet 1"


def test_a_place_for_words_takes_words_of_one_line_only() -> None:
    assert project("<action>go\nnorth</action>", ("go <where>",)).action_status == "repaired"  # as `go north`
    assert project("<action>Go Far North</action>", ("go <where>",)).action == "go Far North"
    assert (
        project("<action>give it to me</action>", ("give <what> to <whom>",)).action_status == "invalid"
    )  # two places


@pytest.mark.parametrize(("written", "action", "verdict"), CASES["numbered"])
def test_numbered_actions_are_meant_by_their_number(written: str, action: str, verdict: str) -> None:
    found = parse_numbered_action(written, ROOM)
    assert (found.action, found.action_status) == (action, verdict)


TAGS = ("<action>", "</action>", "<think>", "</think>", "<skill_ops>", "</skill_ops>", "<generate>", "</generate>")
ODD = ("look", "7", "search[", "]", "\n", " ", ".", "<", ">", "[2]", "İ", "ẞ", "去", "\ud800", "\x00", "open cabinet 1")
PIECES = st.sampled_from((*TAGS, *ODD))
WRITTEN = st.one_of(st.text(), st.lists(PIECES, max_size=30).map("".join))
LISTED = st.lists(st.one_of(st.sampled_from([*ROOM, *SHOP]), st.text(max_size=20)), max_size=6)


@given(WRITTEN, LISTED)
def test_any_text_gives_an_action_of_bounded_length_and_valid_means_possible(written: str, listed: list[str]) -> None:
    for rule in (project, parse_numbered_action):
        found = rule(written, listed)
        assert len(found.action) <= max([LONGEST, *map(len, listed)])
        assert bool(found.parse_error) == (found.action_status != "valid")
        if found.action_status != "invalid" and listed:
            slots = [each.partition("<")[0] for each in listed if "<" in each]
            assert found.action in listed or any(found.action.startswith(before) for before in slots)
    assert projection("none")(written, listed).action == content(written)


@given(LISTED)
def test_what_is_listed_is_valid_when_it_is_written_in_tags(listed: list[str]) -> None:
    for action in listed:
        clean = (
            action.strip() == action and action and not any(tag in action.lower() for tag in ("<action>", "</action>"))
        )
        if clean and not any(tag in action.lower() for tag in ("<think>", "<skill_ops")):
            found = project(f"<think>so</think><action>{action}</action>", listed)
            assert (found.action, found.action_status) == (action, "valid")
            numbered = parse_numbered_action(f"<action>{answer_for(action, listed, numbered=True)}</action>", listed)
            assert numbered.action_status == "valid"
