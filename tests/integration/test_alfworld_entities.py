"""Whole episodes of ALFWorld in tokens: what an expert plays, as prompts of `agent.context_mode: episode` write it, is one short text."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from skill_ttrl.agents.agent import Agent, AgentInput, PromptFormatter
from skill_ttrl.agents.observations import Form, alfworld
from skill_ttrl.agents.scripted import make_scripted_agent
from skill_ttrl.config import BuiltinConfig, load_config
from skill_ttrl.envs.alfworld.env import ALFWORLD_ENV_ID, ALFWorldEnv
from skill_ttrl.envs.alfworld.maker import write_games
from skill_ttrl.errors import EnvError
from skill_ttrl.llm.chat import count_unknown, encode_chat, encode_next, encode_plain, turn_end
from skill_ttrl.llm.models.builtin import build_tokenizer
from skill_ttrl.rollout.episode import Exploration
from skill_ttrl.rollout.rollout import run_scripted_episode
from skill_ttrl.train.policy import PolicyLoader
from skill_ttrl.types import Trajectory, to_json

AGENT = Agent(PromptFormatter("plain"), "episode", form=Form(alfworld))
FILLERS = {"a", "an", "the", "some", "it", "them", "and"}


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> list[Trajectory]:
    """Games that were explored a little so that impossible and needless commands are among what was done."""
    folder = tmp_path_factory.mktemp("games")
    try:
        write_games(folder, "train", 8)
    except EnvError as error:
        if importlib.util.find_spec("alfworld"):
            raise
        pytest.skip(f"needs the files of the package alfworld: {error}")
    env, expert = ALFWorldEnv(data=folder), make_scripted_agent("expert", ALFWORLD_ENV_ID)
    return [
        run_scripted_episode(env, task, expert, seed=3, explore=Exploration((0.2,), 0.5, 40)) for task in env.tasks()
    ]


def expected(episode: Trajectory) -> str:
    """The same text, written from what the engine says of the game, not from its observations alone."""
    words = [word for word in episode.goal.rstrip(".").split() if word not in FILLERS]
    room = episode.steps[0].observation.split("you see ")[1].split(".\n")[0]
    things = [thing.removeprefix("and ").removeprefix("a ") for thing in room.split(", ")]
    text = " ".join(["<task>", *words, "<room>", *things])
    for step, later in zip(episode.steps, [*episode.steps[1:], None], strict=True):
        text += f" <act> {step.action} <obs>"
        if later is not None:
            verb = step.action.split(" ")[0]
            looks = verb in ("go", "open", "examine", "look", "inventory")
            text += f" {seen(later.observation) if looks else 'ok'}"
    return text


def seen(said: str) -> str:
    """The things behind "you see" or "carrying", read by hand."""
    for mark in ("you see ", "carrying: "):
        if mark in said:
            names = said.split(mark)[1].split(".")[0].split(", ")
            return " ".join(name.removeprefix("and ").removeprefix("a ") for name in names)
    if "not carrying" in said:
        return "nothing"
    return "closed" if said.endswith("is closed.") else "ok"


def test_an_expert_s_episodes_are_the_compact_text_and_nothing_is_unknown(
    played: list[Trajectory], tmp_path: Path
) -> None:
    file = tmp_path / "episodes.jsonl"
    file.write_text("".join(f"{to_json(each)}\n" for each in played))
    config = load_config(
        {
            "agent": {"context_mode": "episode", "observations": "alfworld", "template": "plain"},
            "demonstrations": {"trajectories": str(file)},
            "model": {"path": "builtin", "builtin": {"vocabulary": "entities"}},
        }
    )
    tokenizer = build_tokenizer(PolicyLoader(config).prompt_texts(), BuiltinConfig(vocabulary="entities"))
    assert 100 < len(tokenizer) < 800
    sequences = []
    for episode in played:
        ids: list[int] = []
        for place, step in enumerate(episode.steps):
            scene = AgentInput(step.observation, episode.steps[:place], episode.goal, step.admissible_actions)
            ids += encode_next(tokenizer, AGENT.next_message(scene)) if place else ()
            ids += () if place else encode_chat(tokenizer, AGENT.prompt(scene).messages)
            ids += [*encode_plain(tokenizer, step.action), turn_end(tokenizer)]
            assert tokenizer.decode([*encode_plain(tokenizer, step.action)]) == step.action
        assert tokenizer.decode(ids) == expected(episode)
        sequences.append(ids)
    assert count_unknown(tokenizer, sequences) == (0, sum(map(len, sequences)))
    assert sum(map(len, sequences)) / len(sequences) < 160
