"""The exploring expert, by hand-written rooms: what it does for each kind of task, and that it stands anything."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skill_ttrl.agents.scripted import make_scripted_agent
from skill_ttrl.envs.alfworld.expert import TRIES, ALFWorldExpert, Goal, read_goal
from tests.alfworld_scenes import ALWAYS, SCRIPTS, commands

CASES = json.loads((Path(__file__).parents[3] / "data" / "action_cases.json").read_text("utf-8"))


@pytest.mark.parametrize("put", [r"move \1 to \2", r"put \1 in/on \2"])
@pytest.mark.parametrize("name", SCRIPTS)
def test_each_kind_of_task_is_played_as_one_would_in_the_games_own_words(name: str, put: str) -> None:
    player = make_scripted_agent("expert", "SkillTTRL/ALFWorld-v0")
    for number, (text, listed, expected) in enumerate(SCRIPTS[name]):
        info = {"admissible_commands": [re.sub("move (.+) to (.+)", put, each) for each in commands(listed)]}
        if number == 0:
            player.start(text, info, seed=0)
        assert player.act(text, info) == re.sub("move (.+) to (.+)", put, expected), (number, text)


@pytest.mark.parametrize(("sentence", "goal"), CASES["goals"])
def test_the_sentences_of_the_games_are_understood(sentence: str, goal: list[str]) -> None:
    intro = "-= Welcome to TextWorld, ALFRED! =-\n\nLooking quickly around you, you see a desk 1.\n\nYour task is to: "
    assert read_goal(intro + sentence) == Goal(*goal)


@pytest.mark.parametrize("text", ["", "Your task is to: sing a song.", "Your task is to:\nput a mug in shelf", "put"])
def test_what_states_no_known_task_is_no_goal(text: str) -> None:
    assert read_goal(text) is None


NAMES = st.sampled_from(
    "mug 1, mug 2, cup 1, shelf 1, shelf 2, drawer 1, fridge 1, microwave 1, desklamp 1".split(", ")
)
COMMANDS = st.one_of(
    st.sampled_from(ALWAYS),
    st.builds("{} {}".format, st.sampled_from(["go to", "open", "close", "examine", "use"]), NAMES),
    st.builds("take {} from {}".format, NAMES, NAMES),
    st.builds("move {} to {}".format, NAMES, NAMES),
    st.builds("{} {} with {}".format, st.sampled_from(["clean", "heat", "cool", "slice"]), NAMES, NAMES),
    st.text(max_size=12),
)
SENTENCES = st.sampled_from(
    [
        f"Your task is to: {task}."
        for task in ("put two mug in shelf", "put a hot mug in drawer", "look at mug under the desklamp")
    ]
)


@given(st.one_of(SENTENCES, st.text()), st.lists(st.lists(COMMANDS, min_size=1, max_size=8), min_size=1, max_size=12))
def test_in_any_room_it_gives_one_of_the_commands_that_there_are(start: str, rooms: list[list[str]]) -> None:
    player = ALFWorldExpert()
    player.start(start, {}, seed=0)
    for listed in rooms:
        assert player.act("", {"admissible_commands": listed}) in listed


@given(st.one_of(SENTENCES, st.text()), st.lists(COMMANDS, min_size=1, max_size=8, unique=True))
def test_in_a_room_where_nothing_ever_happens_nothing_is_tried_for_ever(start: str, listed: list[str]) -> None:
    player, steps = ALFWorldExpert(), 50
    player.start(start, {}, seed=0)
    given = Counter(player.act("Nothing happens.", {"admissible_commands": listed}) for _ in range(steps))
    assert max(given.values()) <= max(TRIES, -(-steps // len(listed)))


@given(
    st.text(),
    st.dictionaries(
        st.sampled_from(["admissible_commands", "won"]),
        st.one_of(st.none(), st.integers(), st.text(), st.lists(st.one_of(st.text(), st.integers(), st.none()))),
    ),
)
def test_whatever_it_is_shown_it_answers_with_a_text(observation: str, info: dict[str, Any]) -> None:
    player = ALFWorldExpert()
    assert isinstance(player.act(observation, info), str)  # even where nobody said that an episode begins
    player.start(observation, info, seed=0)
    assert isinstance(player.act(observation, info), str)
