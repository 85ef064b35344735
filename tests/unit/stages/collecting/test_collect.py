"""Collecting, piece by piece: episodes in order on any number of processes, kept whole, and counted."""

from __future__ import annotations

import json
import resource
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from skill_ttrl.errors import ConfigError, EnvError, RunFolderError
from skill_ttrl.progress import SilentProgress
from skill_ttrl.rollout.outcome import EpisodeResult, count_success
from skill_ttrl.runs.episode_logs import TrajectoryFile, identity_file
from skill_ttrl.stages import collect as stage
from skill_ttrl.stages.collecting.collection import Collected, TaskSelection
from skill_ttrl.statistics import wilson_interval
from skill_ttrl.types import Trajectory, from_json
from skill_ttrl.workers import work
from tests.doors import DOORS

MADE: dict[str, Any] = {"env": "Doors-v0", "kwargs": {}, "seed": 0}


def run(env: str, **words: Any) -> Collected:
    """`collect.run`, the words on tasks taken together."""
    chosen = {
        name: words.pop(name) for name in ("split", "kwargs", "types", "episodes", "rollouts_per_task") if name in words
    }
    return stage.run(TaskSelection(env, **chosen), **words)


def outcome(task: str, success: bool | None = True, *, kind: str = "left", error: str | None = None) -> EpisodeResult:
    return EpisodeResult(task, kind, success, 4, error, "")


def trajectories(path: Path) -> list[Trajectory]:
    return [from_json(Trajectory, line) for line in path.read_bytes().splitlines()]


def twice(shift: int) -> Callable[[int], int]:
    """What a process does: the later the item the sooner it is done, so that results come in another order."""

    def work_on(number: int) -> int:
        time.sleep(0.01 * (number % 3 == 0))
        if number == 41:
            raise EnvError("41 is not played")
        return 2 * number + shift

    return work_on


@pytest.fixture
def found_by_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fresh Python finds this module."""
    monkeypatch.syspath_prepend(Path(__file__).parents[4])


@pytest.mark.usefixtures("found_by_processes")
@pytest.mark.parametrize("jobs", [1, 2])
def test_results_come_in_the_order_of_the_items_and_failures_are_raised_here(jobs: int) -> None:
    found = work(partial(twice, 1), range(45), jobs)
    assert [next(found) for _ in range(41)] == [2 * number + 1 for number in range(41)]
    with pytest.raises(EnvError, match="41 is not played"):
        next(found)


def test_a_process_that_dies_is_an_error_and_not_a_wait_for_ever() -> None:
    with pytest.raises(EnvError, match=r"ended before it was done \(exit code 9\)"):
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


def test_an_episode_that_fails_is_a_line_with_its_error_and_no_success(tmp_path: Path) -> None:
    found = run(DOORS, agent="tests.doors:Clumsy", output=tmp_path / "out.jsonl", kwargs={"broken": [7]})
    lines = trajectories(tmp_path / "out.jsonl")
    errors = {line.task.id: line.error for line in lines if line.error}
    assert errors == {
        "train/3": "ValueError: dropped the key",
        "train/7": "RuntimeError: door 7 is stuck",
        "train/13": "ValueError: dropped the key",
        "train/23": "ValueError: dropped the key",
    }
    assert found.overall.failed == 4 and found.overall.success == pytest.approx(26 / 30)
    assert found.first_error == "ValueError: dropped the key" and found.by_type["left"].success == 1


class Heard(SilentProgress):
    """Remembers what it is told."""

    def __init__(self) -> None:
        self.notices: list[tuple[str, bool]] = []

    def notice(self, text: str, *, warning: bool = False) -> None:
        self.notices.append((text, warning))


def test_what_comes_after_a_failure_does_not_suffer_from_it() -> None:
    assert run(DOORS, agent="tests.doors:Brittle", split="test", jobs=1).overall.failed == 1


@pytest.mark.parametrize(
    ("agent", "words"),
    [("walkthrough", r"info\['walkthrough'\]"), ("tests.doors:Wordless", "action must be a str, found int")],
)
def test_where_every_episode_fails_nothing_is_kept_and_the_first_error_is_said(
    tmp_path: Path, agent: str, words: str
) -> None:
    with pytest.raises(EnvError, match=rf"(?s)All 30 episodes failed .*{words}"):
        run(DOORS, agent=agent, output=tmp_path / "out.jsonl")
    assert list(tmp_path.iterdir()) == []


def test_a_task_with_a_true_answer_is_graded(tmp_path: Path) -> None:
    found = run(
        "math", agent="tests.unit.stages.collecting.test_collect:Adder", episodes=5, output=tmp_path / "out.jsonl"
    )
    assert found.overall.success == 1
    assert all(line.answer == line.task.ground_truth for line in trajectories(tmp_path / "out.jsonl"))


class Adder:
    """Adds."""

    def start(self, observation: str, info: Any, seed: int) -> None:
        """Remembers nothing."""

    def act(self, observation: str, info: Any) -> str:
        left, right = observation.removeprefix("Compute ").rstrip(".").split("+")
        return f"<answer>{int(left) + int(right)}</answer>"


@pytest.mark.parametrize(
    ("episodes", "tries", "places"), [(4, 1, [0, 1, 14, 15]), (4, 2, [0, 0, 1, 1]), (3, 2, [0, 0, 1])]
)
def test_fewer_episodes_are_of_tasks_that_are_spread_over_the_split_and_its_types(
    tmp_path: Path, episodes: int, tries: int, places: list[int]
) -> None:
    run(DOORS, agent="random", episodes=episodes, rollouts_per_task=tries, output=tmp_path / "out.jsonl")
    assert [line.task.id for line in trajectories(tmp_path / "out.jsonl")] == [f"train/{place}" for place in places]


def test_more_episodes_than_there_are_tasks_are_not_cut_down_without_a_word(tmp_path: Path) -> None:
    heard = Heard()
    found = run(DOORS, agent="random", episodes=100, output=tmp_path / "out.jsonl", progress=heard)
    assert found.played < 100 and any(
        f"{found.played} episodes are played instead of 100" in text for text, _ in heard.notices
    )


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


@pytest.mark.parametrize(("agent", "explore", "words"), [("random", 1.5, "0 to 1"), ("walkthrough", 0.1, "replays")])
def test_exploring_that_makes_no_sense_is_refused(tmp_path: Path, agent: str, explore: float, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        run(DOORS, agent=agent, explore=explore, output=tmp_path / "out.jsonl")
    assert list(tmp_path.iterdir()) == []


def test_only_the_types_that_are_asked_for_are_played() -> None:
    found = run(DOORS, agent="random", types=["right"])
    assert found.overall.tasks == 15 and found.by_type == {}
    with pytest.raises(EnvError, match=r"no tasks of type 'rigth'.* Did you mean 'right'\? Known: left, right"):
        run(DOORS, agent="random", types=["rigth"])


@pytest.mark.parametrize("name", ["episodes", "rollouts_per_task", "jobs"])
def test_numbers_below_one_are_refused(name: str) -> None:
    wrong: dict[str, Any] = {name: 0}
    with pytest.raises(ConfigError, match=f"{name} must be at least 1, found 0"):
        run(DOORS, agent="random", **wrong)


def test_an_agent_that_is_none_is_refused_before_anything_is_played(tmp_path: Path) -> None:
    for agent, words in {
        "randon": r"Did you mean 'random'\? Known: brief, careful, constant, expert, first, random, rule, walkthrough\.",
        "tests.doors:Doors": "has no method 'start'",
        "tests.doors:Nobody": "has no agent 'Nobody'",
        "tests.unit.stages.collecting.test_collect:twice": "called without arguments.: TypeError: ",
        "tests.doors:Lost": "called without arguments.: RuntimeError: no map",
    }.items():
        with pytest.raises(ConfigError, match=words):
            run(DOORS, agent=agent, output=tmp_path / "out.jsonl")
    with pytest.raises(ConfigError, match=r"--split names the split; remove env.kwargs.split=train"):
        run(DOORS, agent="random", kwargs={"split": "train"}, output=tmp_path / "out.jsonl")
    with pytest.raises(EnvError, match="no agent 'expert'"):
        run(DOORS, agent="expert", output=tmp_path / "out.jsonl")
    assert list(tmp_path.iterdir()) == []


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


def test_a_file_that_was_changed_is_not_gone_on_with(tmp_path: Path) -> None:
    file = tmp_path / "out.jsonl"

    def collect() -> None:
        run(DOORS, agent="random", split="test", output=file)

    collect()
    lines = file.read_bytes().splitlines(keepends=True)
    for changed, words in [
        ([*lines, lines[0]], "more than the expected 6 lines"),
        ([lines[1], lines[0]], "out.jsonl:1 belongs to the task 'test/1' instead of 'test/0'"),
        ([lines[0], b'{"task": 3}\n'], "out.jsonl:2 is no trajectory"),
    ]:
        file.write_bytes(b"".join(changed))
        with pytest.raises(RunFolderError, match=words):
            collect()


@pytest.mark.parametrize("torn", [b"{", b'{"task": {"id": "test/4"', b'{"task": 4}'])
def test_a_torn_line_is_cut(tmp_path: Path, torn: bytes) -> None:
    file = tmp_path / "out.jsonl"
    with TrajectoryFile(file, MADE) as opened:
        opened.append(['{"line": 1}'])
    with file.open("ab") as stream:
        stream.write(torn)
    with TrajectoryFile(file, MADE) as opened:
        assert opened.cut == len(torn)
        assert list(opened.lines()) == [b'{"line": 1}\n']


def test_where_a_file_may_not_grow_it_is_as_it_was(tmp_path: Path) -> None:
    with TrajectoryFile(tmp_path / "out.jsonl", MADE) as file:
        file.append(["{}"])
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
        try:
            with pytest.raises(RunFolderError, match="size limit"):
                file.append(["[1]", f"[{'2' * 200}]"])
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert [*file.lines()] == [b"{}\n"]


def test_two_cannot_write_to_one_file_and_nothing_is_left_of_their_lock(tmp_path: Path) -> None:
    file = tmp_path / "out.jsonl"
    with TrajectoryFile(file, MADE) as opened:
        with pytest.raises(RunFolderError, match="already open"):
            TrajectoryFile(file, MADE)
        opened.append(["{}"])
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["out.jsonl", "out.jsonl.json"]


def test_what_is_no_file_of_trajectories_is_never_written_to(tmp_path: Path) -> None:
    (tmp_path / "mine.jsonl").write_text("precious\n")
    for path, words in {
        tmp_path: "it is a folder. Name a file in it",
        tmp_path / "mine.jsonl": "which says what it was made with, is missing",
        tmp_path / "out.txt": r"ends in \.jsonl",
        tmp_path / "mine.jsonl" / "out.jsonl": "a part of the path is a file|exists",
    }.items():
        with pytest.raises(RunFolderError, match=words):
            TrajectoryFile(path, MADE)
    assert (tmp_path / "mine.jsonl").read_text() == "precious\n"
    assert [entry.name for entry in tmp_path.iterdir()] == ["mine.jsonl"]


def test_several_episodes_a_task_are_drawn_together() -> None:
    """Ten tries at a task that always succeed are no ten tasks: the interval is as wide as for two."""
    many = [outcome(task, task == "a") for task in "ab" for _ in range(10)]
    found = count_success(many)
    assert found.tasks == 2 and found.episodes == 20
    assert found.interval == pytest.approx(wilson_interval(1, 2))
