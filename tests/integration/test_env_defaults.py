"""Each environment has its own prompts, action parser and turns, used wherever no config says otherwise."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from skill_ttrl.config import SkillTTRLConfig, load_config
from skill_ttrl.envs import env_defaults
from skill_ttrl.envs.alfworld.games import forget
from skill_ttrl.train.defaults import in_another_env, with_env_defaults
from tests.alfworld_kitchen import walks, write_game
from tests.faulty_server import FaultyServer
from tests.integration.test_cli_commands import refused, skillttrl
from tests.integration.test_openai_backend import at

GAME = "pick_and_place_simple-Apple-None-Fridge-1/trial_A"


@pytest.fixture
def kitchen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    write_game(tmp_path / "games", "train", GAME)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    forget()
    yield tmp_path / "games"
    forget()


@pytest.mark.parametrize("command", ["evaluate", "collect", "envs play"])
def test_a_model_behind_an_address_plays_with_nothing_said_of_prompts(command: str, kitchen: Path) -> None:
    place = {
        "evaluate": ("openai:m", "--env", "alfworld", "--split", "train", "--set", "eval.samples=1"),
        "collect": ("--policy", "openai:m", "--env", "alfworld", "-o", kitchen / "out.jsonl"),
        "envs play": ("alfworld", "--policy", "openai:m"),
    }[command]
    said: list[str] = []

    def hears(body: Mapping[str, Any], draw: random.Random) -> str:
        said[:] = [message["content"] for message in body["messages"]]
        return walks(body, draw)

    with FaultyServer(answer=hears, faults=()) as server:
        done = skillttrl(*command.split(), *place, "--env-data", kitchen, "--json", *at(server))
    assert done.code == 0, done
    found = done.json
    won = {"evaluate": lambda: found["accuracy"], "collect": lambda: found["overall"]["success"]}
    assert won.get(command, lambda: found["steps"][-1]["reward"])() == 1.0
    assert len(said) == 1 and "boxed" not in said[0] and "go to fridge 1" in said[0] and "<action>" in said[0]


def test_what_a_config_states_stays(kitchen: Path) -> None:
    assert env_defaults("webshop")["agent.max_turns"] == 15

    def agent(env: str, playing: tuple[str, ...] | None = (), **stated: Any) -> Any:
        found = with_env_defaults(SkillTTRLConfig.model_validate({"env": {"id": env}, **stated}), playing=playing)
        return found.agent.template, found.agent.context_mode, found.agent.action_parser, found.agent.max_turns

    assert agent("webshop") == ("webshop", "window", "action", 15)
    assert agent("math") == ("boxed", "conversation", "none", 50) and agent("math", None)[3] == 1
    assert agent("alfworld", agent={"template": "plain"}) == ("plain", "conversation", "none", 50)
    assert agent("alfworld", agent={"action_parser": "none"})[:3] == ("alfworld", "window", "none")
    assert agent("alfworld", agent={"max_turns": 7, "context_mode": "none"}) == ("boxed", "none", "none", 7)
    assert agent("alfworld", ("agent.max_turns=1",), agent={"max_turns": 1})[3] == 1
    assert with_env_defaults(load_config("skillrl_webshop")).to_yaml() == load_config("skillrl_webshop").to_yaml()
    assert with_env_defaults(load_config({"env": {"id": "alfworld"}})).rl.reward == "env"


def test_a_recipe_of_one_environment_is_replanned_for_another_or_refused() -> None:
    refused(skillttrl("train", "quickstart", "--env", "webshop", "--dry-run"), 2, "for math", "sft.data", "webshop")
    refused(skillttrl("train", "quickstart_skills", "--env", "webshop", "--dry-run"), 2, "skills.bank")
    refused(skillttrl("train", "quickstart_webshop", "--env", "alfworld", "--dry-run"), 3, "no agent 'careful'")
    replanned = load_config(
        "quickstart_skills_alfworld", [*in_another_env("quickstart_skills_alfworld", "webshop"), "env.id=webshop"]
    )
    assert (replanned.agent.template, replanned.agent.max_turns, replanned.env.kwargs) == ("webshop", 15, {})
    assert replanned.env.eval_split == "test" and in_another_env("quickstart_webshop", "webshop") == []


def test_ask_speaks_the_environment_of_the_policy(tmp_path: Path) -> None:
    said: list[str] = []

    def answer(body: Mapping[str, Any], draw: random.Random) -> str:
        said.append(body["messages"][-1]["content"])
        return "I am: a river, 7 of them"

    with FaultyServer(answer=answer, faults=()) as server:

        def ask(env: str, kwargs: str = "{}") -> Any:
            file = tmp_path / "config.yaml"
            file.write_text(f"env: {{id: {env}, kwargs: {kwargs}}}\n")
            return skillttrl("ask", "openai:m", "How many?", "--config", file, "--json", *at(server))

        game, sums, lenient = ask("alfworld"), ask("math"), ask("math", "{last_number: true}")
    refused(game, 2, "takes no question")
    assert "boxed" in said[0] and sums.code == 0 and sums.json["warnings"] == []
    assert sums.json["answers"] == [None] and lenient.json["answers"] == ["7"], "an answer is found as in training"
