"""The space of all strings keeps Gymnasium's rules, alone and in vectors."""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from gymnasium.vector.utils import batch_space
from hypothesis import given
from hypothesis import strategies as st

from skill_ttrl.envs import TextEnv, TextSpace

any_text = st.text(st.characters(exclude_categories=()))  # surrogates included


@given(any_text)
def test_every_string_is_in_it_and_survives_json(text: str) -> None:
    space = TextSpace()
    assert text in space
    assert space.from_jsonable(space.to_jsonable([text])) == [text]


@pytest.mark.parametrize("value", [b"bytes", 1, None, ["a"], ("a",)])
def test_nothing_else_is(value: object) -> None:
    assert value not in TextSpace()


def test_batches_are_tuples_with_their_own_generators() -> None:
    batch: Any = batch_space(TextSpace(seed=1), 3)
    assert len(batch) == 3 and len(set(batch.sample())) == 3
    assert ("a", "", "b c") in batch


class Echo(TextEnv):
    """Says what it heard, for three turns."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.turn = 0
        return "Speak, ä 数!", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.turn += 1
        return f"you said: {action}", float(len(action)), self.turn == 3, False, {}


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_vectors_of_text(kind: str) -> None:
    makers = [Echo, Echo]
    envs: Any = AsyncVectorEnv(makers, shared_memory=False) if kind == "async" else SyncVectorEnv(makers)
    try:
        observations, _ = envs.reset(seed=0)
        assert tuple(observations) == ("Speak, ä 数!",) * 2
        observations, rewards, *_ = envs.step(("one", ""))
        assert tuple(observations) == ("you said: one", "you said: ")
        assert rewards.tolist() == [3.0, 0.0]
        envs.step(envs.action_space.sample())
        _, _, terminated, *_ = envs.step(("x", "y" * 1000))
        assert terminated.tolist() == [True, True]
    finally:
        envs.close()


@pytest.mark.parametrize("render_mode", [None, "ansi"])
@pytest.mark.parametrize("name", ["SkillTTRL/Math-v0", "SkillTTRL/QA-v0"])
def test_gymnasium_has_nothing_to_say(name: str, render_mode: str | None) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(gymnasium.make(name, render_mode=render_mode).unwrapped)
