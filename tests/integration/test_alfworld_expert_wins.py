"""The exploring expert in the official games: how many it wins, and that it wins them by what a player is shown."""

from __future__ import annotations

import importlib.util
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from skill_ttrl.agents.scripted import make_scripted_agent
from skill_ttrl.envs.alfworld.engine import MAX_STEPS
from skill_ttrl.envs.alfworld.env import ALFWORLD_ENV_ID, ALFWorldEnv
from skill_ttrl.envs.alfworld.expert import ALFWorldExpert
from skill_ttrl.envs.alfworld.games import TASK_TYPES
from skill_ttrl.envs.alfworld.maker import write_games
from skill_ttrl.errors import EnvError
from skill_ttrl.rollout.rollout import run_scripted_episode
from skill_ttrl.types import Trajectory


class Blindfolded(ALFWorldExpert):
    """The expert, given the first observation and the commands, and nothing else."""

    def start(self, observation: str, info: Mapping[str, Any], seed: int) -> None:
        super().start(observation, {}, 0)

    def act(self, observation: str, info: Mapping[str, Any]) -> str:
        return super().act("", {"admissible_commands": info["admissible_commands"]})


def episodes(data: Path, split: str, player: ALFWorldExpert, every: int = 1) -> list[Trajectory]:
    env = ALFWorldEnv(data=data, split=split)
    played = [run_scripted_episode(env, task, player, seed=3) for task in env.tasks()[::every]]
    assert [episode.error for episode in played if episode.error] == []
    return played


def share_won(played: list[Trajectory]) -> float:
    return fmean(episode.stop_reason == "terminated" for episode in played)


@pytest.mark.slow
@pytest.mark.parametrize(("split", "games"), [("valid_unseen", 134), ("valid_seen", 140)])
def test_it_wins_95_in_100_games_of_each_type_in_a_fifth_of_the_steps(
    official_games: Path, split: str, games: int
) -> None:
    expert = make_scripted_agent("expert", ALFWORLD_ENV_ID)
    assert isinstance(expert, ALFWorldExpert)
    played = episodes(official_games, split, expert)
    assert len(played) == games
    by_type: dict[str | None, list[Trajectory]] = defaultdict(list)
    for episode in played:
        by_type[episode.task.task_type].append(episode)
    assert set(by_type) == set(TASK_TYPES)
    assert {name: share_won(some) for name, some in by_type.items() if share_won(some) < 0.95} == {}
    assert fmean(len(episode.steps) for episode in played) < MAX_STEPS / 5
    assert all(step.action in step.admissible_actions for episode in played for step in episode.steps)


@pytest.mark.slow
def test_it_plays_the_same_when_everything_but_the_first_text_and_the_commands_is_taken_away(
    official_games: Path,
) -> None:
    seeing, blindfolded = (episodes(official_games, "valid_unseen", who) for who in (ALFWorldExpert(), Blindfolded()))
    for one, other in zip(seeing, blindfolded, strict=True):
        assert [step.action for step in one.steps] == [step.action for step in other.steps]


def test_it_wins_generated_games_as_well(tmp_path: Path) -> None:
    try:
        write_games(tmp_path, "valid_unseen", 48)
    except EnvError as error:
        if importlib.util.find_spec("alfworld"):
            raise
        pytest.skip(f"needs the files of the package alfworld: {error}")
    assert share_won(episodes(tmp_path, "valid_unseen", ALFWorldExpert())) >= 0.95
