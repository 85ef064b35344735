"""The facts of a backend are those of its class, and known without making it."""

from __future__ import annotations

from typing import Any

import pytest

from skill_ttrl.config import load_config
from skill_ttrl.errors import ConfigError
from skill_ttrl.llm.backend import BackendContext, BackendFacts
from skill_ttrl.llm.backends import FACTS, backend_facts, make_backend
from skill_ttrl.llm.hf import HFBackend
from skill_ttrl.llm.openai.backend import OpenAIBackend
from skill_ttrl.llm.vllm.backend import VLLMBackend
from skill_ttrl.llm.vllm.servers import VLLMServerBackend


class Follower(HFBackend):
    """A backend of a user's own."""


class Fixed:
    """One that cannot follow the learner."""

    trainable = False
    closed = False

    def __init__(self, context: BackendContext) -> None:
        pass

    def close(self) -> None:
        Fixed.closed = True

    generate = encode = count = update_weights = sleep = close


@pytest.mark.parametrize(
    ("name", "made"), [("hf", HFBackend), ("vllm", VLLMBackend), ("vllm", VLLMServerBackend), ("openai", OpenAIBackend)]
)
def test_the_facts_of_a_built_in_backend_are_those_of_its_class(name: str, made: Any) -> None:
    known = FACTS[name]
    assert (made.is_learner, made.trainable, made.blocking) == (known.is_learner, known.trainable, known.blocking)


@pytest.mark.parametrize(
    ("settings", "facts"),
    [
        (["rollout.backend=vllm"], BackendFacts(engine=True)),
        (["rollout.backend=vllm", "vllm.mode=server"], BackendFacts()),
        ([f"rollout.backend={__name__}:Follower"], BackendFacts(is_learner=True, blocking=True)),
        (["rollout.backend=nowhere:Nothing"], BackendFacts()),  # make_backend says that it is not there
    ],
)
def test_what_is_known_of_a_backend_before_it_is_made(settings: list[str], facts: BackendFacts) -> None:
    assert backend_facts(load_config({}, settings)) == facts


def test_one_that_cannot_follow_the_learner_is_not_trained() -> None:
    config = load_config({}, [f"rollout.backend={__name__}:Fixed"])
    assert isinstance(make_backend(BackendContext(config, lambda: pytest.fail("loaded"))), Fixed)
    with pytest.raises(ConfigError, match="cannot be trained"):
        make_backend(BackendContext(config, lambda: pytest.fail("loaded"), trains=True))
    assert Fixed.closed
