"""Runs whose skills evolve: what failures on training tasks bring into the bank, and that nothing else does.

The environment is a small one of doors, the policy a random one that never writes an action that can be played.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from skill_ttrl.config import load_config
from skill_ttrl.errors import ConfigError, EndpointError
from skill_ttrl.runs.checkpoint import load_state, newest
from skill_ttrl.runs.folder import RunFolder
from skill_ttrl.skills.bank import SkillBank
from skill_ttrl.skills.evolution import Evolver
from skill_ttrl.stages import train
from skill_ttrl.stages.training.bank_changes import TROUBLE
from skill_ttrl.storage.jsonl import read_jsonl
from skill_ttrl.types import BankUpdate, from_json
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
    lines = (run / "bank" / "log.jsonl").read_bytes().split(b"\n")[:-1]
    return [from_json(BankUpdate, line) for line in lines]


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
