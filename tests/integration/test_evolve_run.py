"""Runs whose skills evolve, and whose bank changes behind a gate: what failures bring in, what the gate keeps out, and the same when resumed.

The environment is a small one of doors, the policy a random one that never writes an action that can be played: no change helps.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from skill_ttrl.commands import merge, train
from skill_ttrl.commands.play import open_gate
from skill_ttrl.config import load_config
from skill_ttrl.errors import ConfigError, EndpointError
from skill_ttrl.runs.checkpoint import load_state, newest
from skill_ttrl.runs.folder import RunFolder
from skill_ttrl.skills.bank import SkillBank
from skill_ttrl.skills.evolution import Evolver
from skill_ttrl.storage.jsonl import read_jsonl
from skill_ttrl.train.bank_changes import TROUBLE, BankGate, decide_changes
from skill_ttrl.train.run import Run
from skill_ttrl.types import BankUpdate, from_json
from tests.integration.test_cli_commands import refused, skillttrl
from tests.scripted_model import asked, scripted

DOORS = """\
name: doors
phases: [rl]
env: {id: "tests.doors:Doors-v0", kwargs: {apart: true}, eval_tasks: 1}
agent: {template: episode, context_mode: window, max_turns: 3, action_parser: action}
data: {max_prompt_tokens: 900}
model:
  path: builtin
  builtin: {hidden_size: 16, layers: 1, heads: 2, max_positions: 1600}
skills: {retrieval: template, update: none, max_retrievals: 0, prompt_top_k: 4, prompt_max_tokens: 400}
evolve: {every: 3, threshold: 0.9, min_episodes: 4, max_new_skills: 1}
rollout: {n_votes_per_prompt: 2, n_samples_per_prompt: 2, max_new_tokens: 4}
rl: {reward: env, steps: 8, prompts_per_step: 4, kl_coef: 0.0, save_steps: 2, mini_batch_size: null}
eval: {samples: 1, greedy: false}
runtime: {device: cpu, threads: 1}
"""


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("config") / "doors.yaml"
    path.write_text(DOORS)
    return path


@pytest.fixture(scope="module")
def whole(doors: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One run that nothing disturbed."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    train.run(load_config(doors), folder)
    return folder


def updates(run: Path) -> list[BankUpdate]:
    log = run / "bank" / "log.jsonl"
    return [from_json(BankUpdate, line) for line in log.read_bytes().split(b"\n")[:-1]] if log.exists() else []


def looks(run: Path) -> list[dict[str, Any]]:
    return read_jsonl(run / "evolve.jsonl")


@pytest.mark.slow
def test_failures_on_training_tasks_bring_skills_into_the_bank(whole: Path) -> None:
    rounds = [update for update in updates(whole) if update.reason == "evolve"]
    assert [update.step for update in rounds] == [2, 5], "after three steps and after six"
    assert all(len(update.changes) == 1 for update in rounds), "at most evolve.max_new_skills"
    evidence = {task for update in rounds for task in update.evidence}
    assert evidence and all(task.startswith("train/") for task in evidence)
    with SkillBank.open(whole / "bank", read_only=True) as bank:
        assert [skill.source for skill in bank] == ["evolve"] * 2
    assert [look["step"] for look in looks(whole)] == [2, 5]
    assert [(look["types_below"], look["added"], look["retired"]) for look in looks(whole)] == [(2, 1, 0), (2, 1, 0)]
    assert looks(whole)[0]["below"] == ["left", "right"] and looks(whole)[0]["changes"][0]["kind"] == "add"


def assert_same(stopped: Path, whole: Path) -> None:
    for name in ("bank/log.jsonl", "evolve.jsonl", "metrics.jsonl"):
        assert (stopped / name).read_bytes() == (whole / name).read_bytes(), name
    states = []
    for run in (whole, stopped):
        with RunFolder.open(run) as folder:
            checkpoint = newest(folder)
        assert checkpoint is not None
        states.append(load_state(checkpoint.path)["state"]["evolve"])
    assert states[0] == states[1]
    assert sum(played for played, _ in states[0]["counts"].values()) == 16, "two steps after the last look"


@pytest.mark.slow
def test_stopped_after_a_look_and_resumed_the_bank_is_that_of_a_run_that_was_never_stopped(
    whole: Path, doors: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The look after three steps is lost with its change of the bank: the checkpoint is of two steps, and it is made again."""

    def breaks(evolver: Evolver, *words: Any, **named: Any) -> Any:
        evolve(evolver, *words, **named)
        raise RuntimeError("the machine is gone")

    evolve = Evolver.evolve
    with monkeypatch.context() as patched:
        patched.setattr(Evolver, "evolve", breaks)
        with pytest.raises(RuntimeError, match="the machine is gone"):
            train.run(load_config(doors), tmp_path / "run")
    train.run(load_config(doors), tmp_path / "run", resume="auto")
    assert_same(tmp_path / "run", whole)


def test_a_run_in_which_no_look_is_ever_due_says_so_and_a_threshold_of_0_is_refused(
    doors: Path, tmp_path: Path
) -> None:
    summary = train.run(load_config(doors, ["evolve.every=2", "rl.steps=1"]), tmp_path / "run")
    assert any(text.startswith("No skill evolves in this run because evolve.every (2)") for text in summary.warnings)
    with pytest.raises(ConfigError, match=r"evolve\.threshold.*greater than 0"):
        load_config(doors, ["evolve.threshold=0"])


@pytest.mark.slow
def test_a_teacher_s_skills_are_in_later_prompts_and_its_failures_are_said(doors: Path, tmp_path: Path) -> None:
    """Winners' operations may change the bank beside it (skills.update=merge)."""
    skill = {"title": "Open", "text": "Open the door that is named.", "tier": "general", "support": [1]}
    with scripted({"new_skills": [skill]}, "I would rather chat.") as server:
        told = {"model": "scripted", "base_url": server.url, "max_retries": "0", "timeout": "5"}
        settings = [f"endpoints.roles.teacher.{name}={value}" for name, value in told.items()]
        settings += ["evolve.teacher=openai", "evolve.every=1", "rl.steps=2", "skills.update=merge"]
        config = load_config(doors, [*settings, "skills.on_failure=skip"])
        summary = train.run(config, tmp_path / "run")
        assert len(asked(server)) >= 2
        with pytest.raises(EndpointError, match=r"bank is unchanged"):
            train.run(load_config(doors, [*settings, "rl.steps=4"]), tmp_path / "stopped")
    with SkillBank.open(tmp_path / "run" / "bank", read_only=True) as bank:
        (only,) = bank
    assert (only.text, only.source, only.tier) == (skill["text"], "evolve", "general") and only.stats.uses > 0
    assert [look["failed"] for look in looks(tmp_path / "run")] == [0, 1]
    assert any(text.startswith(TROUBLE) for text in summary.warnings)


STRICT = ["skills.gate={tasks: 6, rollouts_per_task: 2, every: 2}", "rl.save_steps=3"]
LAX_COMMAND = ["skills.gate={rule: not_worse, min_effect: 0.9, rollouts_per_task: 1}"]
LAX = ["skills.gate={tasks: 6, rollouts_per_task: 1, rule: not_worse, min_effect: 0.9}"]


@pytest.fixture(scope="module")
def strict(doors: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One run that nothing disturbed."""
    folder = tmp_path_factory.mktemp("runs") / "strict"
    train.run(load_config(doors, STRICT), folder)
    return folder


def decisions(run: Path) -> list[dict[str, Any]]:
    return read_jsonl(run / "gate.jsonl")


def test_a_change_that_does_not_help_stays_out_is_recorded_and_does_not_come_back(strict: Path) -> None:
    """Evolution looks after three steps and after six, the gate decides after every second: at four, and the text is known at six."""
    (found,) = decisions(strict)
    assert (found["step"], found["kind"], found["accepted"], found["tasks"]) == (3, "change", False, 6)
    assert found["changes"][0]["source"] == "evolve" and "below the least gain of 0.02" in found["reason"]
    assert updates(strict) == []
    looks = read_jsonl(strict / "evolve.jsonl")
    assert [look["added"] for look in looks] == [1, 0] and looks[1]["left_out"]
    rows = read_jsonl(strict / "metrics.jsonl")
    assert [row["step"] for row in rows if "gate/accepted" in row] == [3]
    assert rows[3]["gate/accepted"] == 0.0 and rows[3]["gate/rollouts"] == 6 * 2 * 2 and rows[3]["bank_skills"] == 0


def test_the_tasks_of_the_gate_are_not_trained_on(strict: Path, doors: Path, tmp_path: Path) -> None:
    trained = {each["task"]["id"] for each in read_jsonl(strict / "trajectories.jsonl")}
    assert len(trained) == 24, "30 doors, 6 of them held out, 8 steps of 4"


@pytest.mark.slow
def test_an_accepted_change_is_applied_as_it_was_proposed(doors: Path, tmp_path: Path) -> None:
    train.run(load_config(doors, [*LAX, "rl.steps=4"]), tmp_path / "run")
    evolved = [update for update in updates(tmp_path / "run") if update.reason == "evolve"]
    assert [update.step for update in evolved] == [2] and all(update.evidence for update in evolved)
    assert [(each["step"], each["accepted"]) for each in decisions(tmp_path / "run")] == [(2, True)]
    with SkillBank.open(tmp_path / "run" / "bank", read_only=True) as bank:
        assert len(bank) == 1 and sum(skill.stats.uses for skill in bank) > 0


@pytest.mark.slow
def test_stopped_between_two_decisions_and_resumed_it_decides_the_same(
    strict: Path, doors: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint after three steps holds a proposal that is not decided on; the run breaks off after the decision."""

    def breaks(run: Run, gate: BankGate | None, evolver: Evolver | None, step: int) -> Mapping[str, float]:
        found = decide_changes(run, gate, evolver, step)
        if step == 3:
            raise RuntimeError("the machine is gone")
        return found

    with monkeypatch.context() as patched:
        patched.setattr("skill_ttrl.train.rl.decide_changes", breaks)
        with pytest.raises(RuntimeError, match="the machine is gone"):
            train.run(load_config(doors, STRICT), tmp_path / "run")
    train.run(load_config(doors, STRICT), tmp_path / "run", resume="auto")
    for name in ("gate.jsonl", "evolve.jsonl", "metrics.jsonl"):
        assert (tmp_path / "run" / name).read_bytes() == (strict / name).read_bytes(), name


def test_a_command_s_change_is_tested_by_the_run_s_policy_on_the_tasks_that_it_held_out(
    strict: Path, tmp_path: Path
) -> None:
    """The policy opens no door, so that nothing is better; what passes is applied as without a gate."""
    records = tmp_path / "records.jsonl"
    responses = ["<skill_ops><generate>Open it.</generate></skill_ops><answer>2</answer>"] * 2
    records.write_text(json.dumps({"id": "p1", "problem": "1+1?", "responses": responses}))
    with open_gate(str(strict), ["skills.gate.rollouts_per_task=1", "skills.gate.tasks=5"]) as gate:
        found = merge.run(records, tmp_path / "bank", gate=gate)
    assert found.gate["of"] == 5 and not found.gate["accepted"] and not found.updates and found.skills_after == 0
    assert any(note.startswith("The gate rejected the change of the bank on 5 of 5 tasks") for note in found.notes)
    assert not (tmp_path / "bank").exists()
    with open_gate(str(strict), [*LAX_COMMAND, "skills.gate.tasks=5"]) as gate:
        found = merge.run(records, tmp_path / "bank", gate=gate)
        again = merge.run(records, tmp_path / "bank", gate=gate)
    assert found.gate["accepted"] and found.skills_after == 1 and not again.gate


def test_gate_options_without_a_gate_are_refused() -> None:
    for words, why in (
        (["merge", "x", "--bank", "y", "--gate-set", "skills.gate.tasks=3"], "needs --policy"),
        (["distill", "--trajectories", "x", "-o", "y", "--policy", "run"], "needs --append"),
    ):
        refused(skillttrl(*words), 2, why)
