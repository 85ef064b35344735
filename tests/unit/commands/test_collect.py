"""Collecting, piece by piece: episodes in order on any number of processes, kept whole, and counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from skill_ttrl.commands import collect as command
from skill_ttrl.commands.collect import Collected
from skill_ttrl.errors import RunFolderError, WorkerError
from skill_ttrl.rollout.outcome import EpisodeResult
from skill_ttrl.runs.episode_logs import identity_file
from skill_ttrl.train.tasks import TaskSelection
from skill_ttrl.types import Trajectory, from_json
from tests.doors import DOORS

MADE: dict[str, Any] = {"env": "Doors-v0", "kwargs": {}, "seed": 0}


def run(env: str, **words: Any) -> Collected:
    """`collect.run`, the words on tasks taken together."""
    chosen = {
        name: words.pop(name) for name in ("split", "kwargs", "types", "episodes", "rollouts_per_task") if name in words
    }
    return command.run(TaskSelection(env, **chosen), **words)


def outcome(task: str, success: bool | None = True, *, kind: str = "left", error: str | None = None) -> EpisodeResult:
    return EpisodeResult(task, kind, success, 4, error, "")


def trajectories(path: Path) -> list[Trajectory]:
    return [from_json(Trajectory, line) for line in path.read_bytes().splitlines()]


@pytest.mark.slow
def test_a_process_that_dies_is_an_error_and_not_a_wait_for_ever() -> None:
    with pytest.raises(WorkerError, match=r"ended its worker 4 times .* ended with code 9\..* lower --num-workers"):
        run(DOORS, agent="tests.doors:Deadly", jobs=2)


def test_every_episode_is_a_line_with_its_exact_text_in_the_order_of_the_tasks(tmp_path: Path) -> None:
    found = run(DOORS, agent="tests.doors:Opener", split="test", output=tmp_path / "out.jsonl")
    lines = trajectories(tmp_path / "out.jsonl")
    assert [line.task.id for line in lines] == [f"test/{number}" for number in range(6)]
    first = lines[0]
    assert [step.observation for step in first.steps] == ["Door 0: open the left one. Grüße, 門.", "Closed."]
    assert [step.action for step in first.steps] == ["wait", "left"]
    assert first.steps[1].admissible_actions == ("left", "right", "wait") and first.final_obs == "Open."
    assert first.stop_reason == "terminated" and first.env_return == 1
    assert found.overall.success == 1 and found.overall.steps == 1.5 and found.source == "joinery"
    assert {kind: each.steps for kind, each in found.by_type.items()} == {"left": 2, "right": 1}
    assert found.played == 6 and found.output == str(tmp_path / "out.jsonl")
    facts = json.loads(identity_file(tmp_path / "out.jsonl").read_text())["facts"]
    assert facts["source"] == ["joinery"] and "gymnasium" in facts["libraries"]


@pytest.mark.parametrize(
    ("episodes", "tries", "places"), [(4, 1, [0, 1, 14, 15]), (4, 2, [0, 0, 1, 1]), (3, 2, [0, 0, 1])]
)
def test_fewer_episodes_are_of_tasks_that_are_spread_over_the_split_and_its_types(
    tmp_path: Path, episodes: int, tries: int, places: list[int]
) -> None:
    run(DOORS, agent="random", episodes=episodes, rollouts_per_task=tries, output=tmp_path / "out.jsonl")
    assert [line.task.id for line in trajectories(tmp_path / "out.jsonl")] == [f"train/{place}" for place in places]


def test_a_player_explores_as_often_as_it_is_told_and_the_file_says_so(tmp_path: Path) -> None:
    file = tmp_path / "out.jsonl"
    found = run(DOORS, agent="tests.doors:Opener", explore=0.5, output=file)
    steps = [step for line in trajectories(file) for step in line.steps]
    assert found.explore == 0.5 and all("expert_action" in step.info for step in steps)
    assert json.loads(identity_file(file).read_text())["made_with"]["explore"] == 0.5
    again, other = tmp_path / "again.jsonl", tmp_path / "other.jsonl"
    run(DOORS, agent="tests.doors:Opener", explore=0.5, output=again)
    run(DOORS, agent="tests.doors:Opener", explore=0.5, seed=1, output=other)
    assert again.read_bytes() == file.read_bytes() != other.read_bytes()
    with pytest.raises(RunFolderError, match=r"explore 0\.5 there, null here"):
        run(DOORS, agent="tests.doors:Opener", output=file)


def test_the_trajectories_of_another_command_are_refused_and_the_difference_is_named(tmp_path: Path) -> None:
    file = tmp_path / "out.jsonl"
    run(DOORS, agent="random", split="test", output=file)
    before = file.read_bytes()
    others: dict[str, dict[str, Any]] = {
        'agent "random" there, "tests.doors:Opener" here': {"agent": "tests.doors:Opener"},
        "seed 0 there, 3 here": {"seed": 3},
        'split "test" there, "train" here': {"split": "train"},
        "kwargs.pause null there, 0.0 here": {"kwargs": {"pause": 0.0}},
        'types.0 null there, "left" here': {"types": ["left"]},
        "rollouts_per_task 1 there, 2 here": {"rollouts_per_task": 2},
        "episodes 6 there, 5 here": {"episodes": 5},
    }
    for words, change in others.items():
        with pytest.raises(RunFolderError, match=f"holds trajectories of something else: .*{words}"):
            run(DOORS, output=file, **{"agent": "random", "split": "test", **change})
    assert file.read_bytes() == before
    assert run(DOORS, agent="random", split="test", output=file).played == 0
