"""The order in which prompts list the possible actions."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from skill_ttrl.agents.action_parser import ActionList, by_words
from skill_ttrl.types import Skill

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
