"""The space of all strings keeps Gymnasium's rules, alone and in vectors."""

from __future__ import annotations

import warnings

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env
from hypothesis import given
from hypothesis import strategies as st

from skill_ttrl.envs import TextSpace

any_text = st.text(st.characters(exclude_categories=()))  # surrogates included


@given(any_text)
def test_every_string_is_in_it_and_survives_json(text: str) -> None:
    space = TextSpace()
    assert text in space
    assert space.from_jsonable(space.to_jsonable([text])) == [text]


@pytest.mark.parametrize("value", [b"bytes", 1, None, ["a"], ("a",)])
def test_nothing_else_is(value: object) -> None:
    assert value not in TextSpace()


@pytest.mark.parametrize("name", ["SkillTTRL/Math-v0", "SkillTTRL/QA-v0"])
def test_gymnasium_has_nothing_to_say(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(gymnasium.make(name).unwrapped)
