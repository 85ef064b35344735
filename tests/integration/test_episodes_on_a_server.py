"""Episodes of several turns with a model behind an address: each asks when it is ready, and all that was answered is accounted for."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from skill_ttrl.agents.action_parser import project
from skill_ttrl.agents.agent import Agent, PromptFormatter
from skill_ttrl.agents.turn_prompt import TurnPromptBuilder
from skill_ttrl.config import EndpointsConfig
from skill_ttrl.envs.alfworld.env import ALFWorldEnv
from skill_ttrl.envs.alfworld.games import forget
from skill_ttrl.llm.backend import Backend, Sampling, wait_for
from skill_ttrl.llm.openai.ledger import track_usage
from skill_ttrl.prompts.templates import Templates
from skill_ttrl.rollout.episode import EnvPool
from skill_ttrl.rollout.rollout import RolloutSettings, rollout
from skill_ttrl.types import Group
from tests.alfworld_kitchen import walks, write_game
from tests.faulty_server import FaultyServer
from tests.integration.test_openai_backend import backend

GAMES = [f"pick_and_place_simple-Apple-None-Fridge-{number}/trial_{number}" for number in range(1, 7)]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    root = tmp_path_factory.mktemp("games")
    for name in GAMES:
        write_game(root, "train", name, task=name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(root / "cache"))
        forget()
        yield str(root)
    forget()


def play(data: str, made: Backend, tries: int = 2, on_episode: Any = print, **more: Any) -> list[Group]:
    agent = Agent(
        PromptFormatter("plain"), "window", window=TurnPromptBuilder(Templates(), "alfworld"), project=project
    )
    tasks = ALFWorldEnv(data).tasks("train")
    try:
        return wait_for(
            rollout(tasks, tries, envs=EnvPool(lambda: ALFWorldEnv(data)), agent=agent, backend=made, on_episode=on_episode, settings=RolloutSettings(Sampling(max_new_tokens=50), 0, max_turns=50, schedule="async", **more))
        )  # fmt: skip
    finally:
        made.close()


@pytest.mark.slow
def test_many_episodes_are_on_their_way_at_once_and_all_of_it_is_accounted_for(data: str) -> None:
    def answer(body: Mapping[str, Any], draw: random.Random) -> str:
        time.sleep(0.05)
        return walks(body, draw)

    faults = ("429", "500", "drop before the answer", "truncated JSON")
    with FaultyServer(faults, 0.1, answer=answer, seed=1) as server, track_usage(None, EndpointsConfig()) as ledger:
        groups = play(data, backend(server))
        spent = ledger.totals()
        assert (spent.tokens_in, spent.tokens_out) == (server.delivered["prompt"], server.delivered["answer"])
    assert server.busiest > 2 and server.hit  # several at once, and faults in between
    tries = [each for group in groups for each in group.trajectories]
    assert len(tries) == 12 and all(each.won for each in tries)
    assert all(step.action_status == "valid" for each in tries for step in each.steps)
