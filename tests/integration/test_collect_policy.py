"""Policies that collect: episodes kept as a player's are, chunk by chunk, gone on with, counted, paid for, refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from skill_ttrl.commands.collect import collect_into, run_policy
from skill_ttrl.config import SkillTTRLConfig, load_config
from skill_ttrl.errors import RunFolderError
from skill_ttrl.progress import SilentProgress
from skill_ttrl.runs.episode_logs import read_identity
from skill_ttrl.train.tasks import TaskSelection
from skill_ttrl.types import Trajectory, from_json
from tests.doors import DOORS, opens
from tests.faulty_server import FaultyServer
from tests.integration.test_cli_commands import skillttrl
from tests.integration.test_openai_backend import at

TINY: dict[str, Any] = {
    "name": "tiny",
    "env": {"id": DOORS},
    "agent": {"template": "plain", "max_turns": 3},
    "data": {"max_prompt_tokens": 400},
    "model": {"path": "builtin", "builtin": {"hidden_size": 32, "layers": 1, "heads": 2, "max_positions": 512}},
    "rollout": {"n_votes_per_prompt": 2, "n_samples_per_prompt": 2, "max_new_tokens": 4},
    "runtime": {"device": "cpu", "threads": 1},
}
PLAIN = ("agent.template=plain",)
TESTS, TRAINS = TaskSelection(DOORS, "test"), TaskSelection(DOORS)


def settings(server: FaultyServer, *more: str) -> list[str]:
    return [word for word in at(server, *PLAIN, *more) if word != "--set"]


def lines(path: Path) -> list[Trajectory]:
    return [from_json(Trajectory, line) for line in path.read_bytes().splitlines()]


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(json.dumps(TINY))
    return path


def test_a_policys_episodes_are_kept_as_a_players_and_counted_by_type(tmp_path: Path) -> None:
    out = tmp_path / "new" / "out.jsonl"
    command = (
        "collect", "--env", DOORS, "--split", "test", "--policy", "openai:opener", "--rollouts-per-task", 2, "-o",
        out,
    )  # fmt: skip
    with FaultyServer(answer=opens, faults=()) as server:
        words = [*command, *at(server, *PLAIN, "endpoints.price_out=1000000")]
        done = skillttrl(*words)
        assert done.code == 0, done
        asked = len(server.asked)
        found = skillttrl(*words, "--json")
        assert len(server.asked) == asked and "episodes are in" in found.err
    played = lines(out)
    assert [each.task.id for each in played] == [f"test/{place}" for place in range(6) for _ in range(2)]
    assert [step.action for step in played[0].steps] == ["wait", "left"]
    assert all(step.completion is not None for each in played for step in each.steps)
    cells = ([cell.strip() for cell in line.split("│")[1:-1]] for line in done.out.splitlines() if "│" in line)
    rows = {first: rest for first, *rest in cells}
    assert rows["left"][:2] == ["6", "1.000 [0.439, 1.000]"] and rows["all"][0] == "12"
    assert rows["right"][0] == "6" and rows["right"][1].startswith("0.667 [")
    assert "12 episodes of 6 tasks" in done.out and "Source: joinery." in done.out and "generated tokens" in done.out
    assert "play 12/12" in done.err and "success 0.833" in done.err and "cost" in done.err and "tokens/s" in done.err
    assert found.json["overall"]["episodes"] == 12 and found.json["played"] == 0
    inspected = skillttrl("inspect", out, "--json").json["facts"]
    assert inspected["complete"] == "yes" and inspected["success"].startswith("0.833 [")


def test_cut_anywhere_it_ends_with_the_same_bytes(tmp_path: Path, recipe: Path) -> None:
    selection = TaskSelection(DOORS, episodes=17, rollouts_per_task=3)

    def collect(path: Path, **more: Any) -> int:
        found = run_policy("builtin", selection, config=str(recipe), chunk=6, output=path, **more)
        return found.played

    whole = tmp_path / "whole.jsonl"
    assert collect(whole) == 17 and len({each.task.id for each in lines(whole)}) == 6
    content = whole.read_bytes().splitlines(keepends=True)
    for kept, torn in ((12, b""), (8, b'{"task":{"id":"tra'), (16, content[16][:50])):
        cut = tmp_path / f"{kept}.jsonl"
        cut.write_bytes(b"".join(content[:kept]) + torn)
        (tmp_path / f"{kept}.jsonl.json").write_bytes((tmp_path / "whole.jsonl.json").read_bytes())
        assert collect(cut) == 17 - kept
        assert cut.read_bytes() == whole.read_bytes()
    assert collect(tmp_path / "other.jsonl", seed=1) == 17
    assert (tmp_path / "other.jsonl").read_bytes() != whole.read_bytes()
    for change in ({"overrides": ["rollout.temperature=0.4"]}, {"seed": 1}, {"overrides": ["seed=1"]}):
        with pytest.raises(RunFolderError, match=r"temperature 1\.0 there, 0\.4 here|seed"):
            collect(whole, **change)


SKILLS = {**TINY, "skills": {"bank": "bank.json", "embedder": "hash", "prompt_top_k": 1, "max_retrievals": 0}}


def test_the_skills_of_its_bank_stand_in_its_prompts_unless_they_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    bank = {
        "general_skills": [
            {"skill_id": "g1", "title": "Knock", "principle": "Open the door that is named.", "when_to_apply": "a"}
        ]
    }
    (tmp_path / "bank.json").write_text(json.dumps({**bank, "task_specific_skills": {}, "common_mistakes": []}))
    (tmp_path / "skilled.yaml").write_text(json.dumps(SKILLS))
    where: dict[str, Any] = {"selection": TaskSelection(DOORS, "test", episodes=2), "config": "skilled.yaml"}
    with FaultyServer(answer=opens, faults=()) as server:
        overrides = [word for word in at(server) if word != "--set"]
        run_policy("openai:opener", overrides=overrides, output=tmp_path / "with.jsonl", **where)
        run_policy("openai:opener", overrides=overrides, output=tmp_path / "without.jsonl", use_bank=False, **where)
    assert {each.skills_in_prompt != () for each in lines(tmp_path / "with.jsonl")} == {True}
    assert {each.skills_in_prompt for each in lines(tmp_path / "without.jsonl")} == {()}
    made_with = read_identity(tmp_path / "with.jsonl")["made_with"]["policy"]
    assert made_with["skill_bank"] and made_with["model"] == "openai:opener"


def phase(**changes: Any) -> SkillTTRLConfig:
    return load_config({**TINY, "seed": 3, **changes})


def test_the_phase_collect_of_a_run_plays_tasks_that_it_trains_on(tmp_path: Path) -> None:
    """Of ten training tasks, six episodes; the same file when it is called again."""
    out = tmp_path / "collected.jsonl"
    asked = {"agent": "tests.doors:Opener", "episodes": 6, "epsilon": 0.25}
    config = phase(env={"id": DOORS, "train_tasks": 10}, collect=asked)
    found = collect_into(out, config, SilentProgress())
    assert found.played == 6 and found.seed == 3 and found.explore == 0.25
    played = lines(out)
    trained = {f"train/{place}" for place in (0, 1, 6, 7, 12, 13, 18, 19, 24, 25)}
    assert {each.task.id for each in played} < trained and len({each.task.task_type for each in played}) == 2
    assert all("expert_action" in step.info for each in played for step in each.steps)
    before = out.read_bytes()
    assert collect_into(out, config, SilentProgress()).played == 0 and out.read_bytes() == before
