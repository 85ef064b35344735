"""`skillttrl evaluate --env`: players and policies on every task of a split, once, with success by type of task."""

from __future__ import annotations

from pathlib import Path

import pytest

from skill_ttrl.commands.evaluate import measure_policy
from skill_ttrl.statistics import wilson_interval
from skill_ttrl.types import Trajectory, from_json
from tests.doors import DOORS, opens
from tests.faulty_server import FaultyServer
from tests.integration.test_cli_commands import skillttrl
from tests.integration.test_openai_backend import at


@pytest.mark.usefixtures("no_words_around")
def test_a_policy_is_measured_on_each_task_of_the_split_and_by_type(tmp_path: Path) -> None:
    command = ("evaluate", "openai:opener", "--env", DOORS, "--set", "eval.samples=1", "--set", "agent.template=plain")
    with FaultyServer(answer=opens, faults=()) as server:
        done = skillttrl(*command, "-o", tmp_path / "kept", "--json", *at(server))
        assert done.code == 0, done
        asked = len(server.asked)
        again = skillttrl(*command, "--full", "-o", tmp_path / "kept", *at(server))
        assert len(server.asked) == asked and again.code == 0
    found = done.json
    assert [result["task"] for result in found["results"]] == [f"test/{number}" for number in range(6)]
    assert [result["correct"] for result in found["results"]] == [1, 1, 1, 1, 1, 0]
    assert found["source"] == f"{DOORS} test (joinery)" and found["split"] == "test"
    unscored = {"score": None, "score_interval": None, "policy": None}  # these doors are open or not
    assert found["by_type"] == {
        "left": {"problems": 3, "accuracy": 1.0, "interval": list(wilson_interval(3, 3)), **unscored},
        "right": {"problems": 3, "accuracy": 2 / 3, "interval": list(wilson_interval(2, 3)), **unscored},
    }
    assert found["score"] is None and found["greedy_score"] is None
    assert found["controls"]["first"] == {
        "problems": 6,
        "accuracy": 0.5,
        "interval": list(wilson_interval(3, 6)),
        **unscored | {"policy": "unclear"},
    }
    assert (found["majority_ratio"], found["entropy"], found["majority"]) == (None, None, None)  # a door has no answer
    shown = " ".join(again.out.split())
    assert "control: first │ 0.500 [0.188, 0.812]" in shown
    assert "agreement" not in shown and "maj@" not in shown and "entropy" not in shown
    assert "joinery" in shown and "avg@1 of right (3) │ 0.667 [0.208, 0.939]" in shown


@pytest.fixture
def no_words_around(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables as wide as they want."""
    monkeypatch.setenv("COLUMNS", "200")


def test_several_samples_of_a_task_are_no_several_tasks() -> None:
    with FaultyServer(answer=opens, faults=()) as server:
        settings = [word for word in at(server, "eval.samples=4", "agent.template=plain") if word != "--set"]
        (found,) = measure_policy("openai:opener", DOORS, split="train", limit=4, overrides=settings)
        assert found.problems == 4 and found.by_type["right"].interval == wilson_interval(2, 2)
        (short,) = measure_policy(
            "openai:opener", DOORS, split="train", limit=4, overrides=[*settings, "agent.max_turns=1"]
        )
        assert short.accuracy == 0, "it waits in the first turn"
        (turned,) = measure_policy(
            "openai:opener", DOORS, split="train", limit=2, kwargs={"broken": [1]}, overrides=settings
        )
        assert turned.failed == 0.5 and turned.by_type["right"].accuracy == 0


def test_a_player_is_measured_once_on_each_task(tmp_path: Path) -> None:
    file = tmp_path / "out.jsonl"
    command = ("evaluate", "tests.doors:Opener", "--env", DOORS)
    done = skillttrl(*command, "-o", file, "--json")
    assert done.code == 0, done
    assert done.json["split"] == "test" and done.json["overall"]["episodes"] == 6
    assert done.json["by_type"]["left"]["interval"] == list(wilson_interval(3, 3))
    lines = [from_json(Trajectory, line) for line in file.read_bytes().splitlines()]
    assert [line.task.id for line in lines] == [f"test/{number}" for number in range(6)]
    shown = skillttrl(*command, "--split", "train", "--limit", 3).out
    assert "train: 3 episodes" in " ".join(shown.split()) and "Source: joinery." in shown
