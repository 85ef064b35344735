"""Runs in which text edits and weight updates take turns on one bank (`optimize.every`).

The policy is a small random one whose answers are hardly ever right; what matters here is what reaches the bank, when, and that a
resumed run does the same. That both optimizers together learn is in benchmarks/optimize_alternating.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from skill_ttrl.config import load_config
from skill_ttrl.data.operators import OperatorGrammar
from skill_ttrl.runs.checkpoint import load_state, newest
from skill_ttrl.runs.folder import RunFolder
from skill_ttrl.skills.bank import SkillBank
from skill_ttrl.stages import train
from skill_ttrl.stages.optimizing.bank_text import BankText, edit_text
from skill_ttrl.stages.reports.inspect import inspect
from skill_ttrl.stages.training.run import Run
from skill_ttrl.storage.jsonl import read_jsonl
from skill_ttrl.types import BankUpdate, Group, from_json
from tests.scripted_model import asked, scripted

CONFIG = """\
name: both
phases: [rl]
env: {id: math}
agent: {template: plain, prompts: tiny}
data:
  train: {path: "synthetic:operators", split: train, limit: 30}
  eval: {path: "synthetic:operators", split: test, limit: 2}
  max_prompt_tokens: 64
model:
  path: builtin
  builtin: {hidden_size: 16, layers: 1, heads: 2, max_positions: 256}
skills: {embedder: hash, index: memory, update: none, prompt_top_k: 1, prompt_max_tokens: 64, max_retrievals: 0, dedup_threshold: null}
optimize:
  every: 2
  optimizer: induce
  optimizer_options: {grammar: "skill_ttrl.data.operators:OperatorGrammar"}
  batch_size: 16
  edit_budget: 1
  min_edit_budget: 1
rollout: {n_votes_per_prompt: 2, n_samples_per_prompt: 2, max_new_tokens: 4}
rl: {reward: label, steps: 6, prompts_per_step: 10, kl_coef: 0.0, save_steps: 3, mini_batch_size: null}
eval: {samples: 1, greedy: false}
runtime: {device: cpu, threads: 1}
"""


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("config") / "both.yaml"
    path.write_text(CONFIG)
    return path


@pytest.fixture(scope="module")
def whole(both: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One run that nothing disturbed."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    train.run(load_config(both), folder)
    return folder


def test_every_second_step_edits_the_bank_by_one_update(whole: Path) -> None:
    lines = (whole / "bank" / "log.jsonl").read_bytes().split(b"\n")[:-1]
    edits = [update for update in (from_json(BankUpdate, line) for line in lines) if update.reason == "optimize"]
    assert [update.step for update in edits] == [1, 3, 5]
    assert all(update.evidence and update.writer == "run" for update in edits)
    with SkillBank.open(whole / "bank", read_only=True) as bank:
        skills = list(bank)
    assert len(skills) == 3, "30 training problems are of three names"
    assert all(skill.source == "optimize" and skill.text in OperatorGrammar().lines(skill.title) for skill in skills)
    rows = read_jsonl(whole / "metrics.jsonl")
    assert [row["step"] for row in rows if "optimize/edits" in row] == [1, 3, 5]
    assert rows[1]["optimize/edits"] == rows[1]["optimize/changes"] == 1 and rows[1]["optimize/failures"] >= 15
    looks = read_jsonl(whole / "optimize.jsonl")
    assert [look["rollouts"] for look in looks] == [16] * 3 and looks[0]["changes"][0]["kind"] == "add"
    assert [(look["edits"], look["applied"], look["changed"]) for look in looks] == [(1, 1, 1)] * 3
    assert looks[0]["report"][0]["status"] == "applied_append"
    assert inspect(whole / "optimize.jsonl").facts == {"lines": 3}


def test_stopped_and_resumed_the_bank_is_that_of_a_run_that_was_never_stopped(
    whole: Path, both: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint is of step 3, between two edits: what was learned from failures before it is part of it."""

    def breaks(run: Run, text: BankText | None, groups: Sequence[Group], step: int) -> dict[str, float]:
        found = edit_text(run, text, groups, step)
        if step == 3:
            raise RuntimeError("the machine is gone")
        return found

    with monkeypatch.context() as patched:
        patched.setattr("skill_ttrl.stages.rl.edit_text", breaks)
        with pytest.raises(RuntimeError, match="the machine is gone"):
            train.run(load_config(both), tmp_path / "run")
    train.run(load_config(both), tmp_path / "run", resume="auto")
    for name in ("bank/log.jsonl", "optimize.jsonl", "metrics.jsonl"):
        assert (tmp_path / "run" / name).read_bytes() == (whole / name).read_bytes(), name
    assert checkpoint_state(tmp_path / "run") == checkpoint_state(whole)
    assert checkpoint_state(whole)["updates"] == 3


def checkpoint_state(run: Path) -> Any:
    with RunFolder.open(run) as folder:
        checkpoint, _ = newest(folder, "auto")
    assert checkpoint is not None
    return load_state(checkpoint.path)["state"]["optimize"]


def test_a_language_model_edits_the_bank(both: Path, tmp_path: Path) -> None:
    edit = {"op": "append", "content": "## Ask\n\nAsk for a rule before you answer."}
    with scripted({"reasoning": "They guess.", "edits": [edit]}) as server:
        told = {"model": "scripted", "base_url": server.url, "max_retries": "0", "timeout": "5"}
        settings = [f"endpoints.roles.optimizer.{name}={value}" for name, value in told.items()]
        settings += ["optimize.optimizer=openai", "optimize.optimizer_options={}", "rl.steps=2"]
        train.run(load_config(both, settings), tmp_path / "run")
        requests = asked(server)
    assert len(requests) >= 2 and "Compute " in str(requests[0])
    with SkillBank.open(tmp_path / "run" / "bank", read_only=True) as bank:
        (only,) = bank
    assert (only.title, only.text, only.source) == ("Ask", "Ask for a rule before you answer.", "optimize")


def test_with_a_gate_the_edits_wait_for_its_decision(both: Path, tmp_path: Path) -> None:
    gate = "skills.gate={data: {path: 'synthetic:operators', split: train, limit: 4}, tasks: 4, rollouts_per_task: 1, every: 4}"
    train.run(load_config(both, [gate, "rl.prompts_per_step=8"]), tmp_path / "run")
    with SkillBank.open(tmp_path / "run" / "bank", read_only=True) as bank:
        assert len(bank) == 0, "a policy that never answers shows no gain"
    decisions = read_jsonl(tmp_path / "run" / "gate.jsonl")
    assert [(each["step"], each["accepted"]) for each in decisions] == [(3, False), (5, False)]
    assert [[change["source"] for change in each["changes"]] for each in decisions] == [["optimize"] * 2, ["optimize"]]
