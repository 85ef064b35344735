"""Runs whose bank changes behind a gate: what it lets in, what it keeps out, and that a resumed run decides the same.

The environment is a small one of doors, the policy a random one that never writes an action that can be played: no change helps.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from skill_ttrl.config import load_config
from skill_ttrl.skills.bank import SkillBank
from skill_ttrl.skills.evolution import Evolver
from skill_ttrl.stages import merge, train
from skill_ttrl.stages.targets.play import open_gate
from skill_ttrl.stages.training.bank_changes import BankGate, decide_changes
from skill_ttrl.stages.training.run import Run
from skill_ttrl.storage.jsonl import read_jsonl
from skill_ttrl.types import BankUpdate, from_json
from tests.integration.test_cli_commands import refused, skillttrl
from tests.integration.test_evolve_run import DOORS

STRICT = ["skills.gate={tasks: 6, rollouts_per_task: 2, every: 2}", "rl.save_steps=3"]
LAX_COMMAND = ["skills.gate={rule: not_worse, min_effect: 0.9, rollouts_per_task: 1}"]
LAX = ["skills.gate={tasks: 6, rollouts_per_task: 1, rule: not_worse, min_effect: 0.9}"]


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("config") / "doors.yaml"
    path.write_text(DOORS)
    return path


@pytest.fixture(scope="module")
def strict(doors: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One run that nothing disturbed."""
    folder = tmp_path_factory.mktemp("runs") / "strict"
    train.run(load_config(doors, STRICT), folder)
    return folder


def updates(run: Path) -> list[BankUpdate]:
    log = run / "bank" / "log.jsonl"
    return [from_json(BankUpdate, line) for line in log.read_bytes().split(b"\n")[:-1]] if log.exists() else []


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
        patched.setattr("skill_ttrl.stages.rl.decide_changes", breaks)
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
