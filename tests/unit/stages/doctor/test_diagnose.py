"""`doctor`: what it finds here is so, and what will not work is said with what to do."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from skill_ttrl.config import load_config
from skill_ttrl.stages.doctor import machine
from skill_ttrl.stages.doctor.diagnose import Diagnosis, diagnose

BUILTIN = {"model": {"path": "builtin", "builtin": {"max_positions": 4096}}, "runtime": {"device": "cpu"}} | {
    "data": {"train": {"path": "synthetic:add"}}
}


def check(found: Diagnosis, name: str) -> machine.Check:
    return next(each for each in found.checks if each.name == name)


def test_this_installation_is_found_whole() -> None:
    found = diagnose()
    assert not found.failed
    assert check(found, "environment").found == "math is SkillTTRL/Math-v0"
    assert "torch 2" in check(found, "packages").found
    assert found.memory_parts == {}


def test_everything_is_json() -> None:
    text = json.dumps(asdict(diagnose(load_config(BUILTIN))))
    assert json.loads(text)["memory_phases"].keys() == {"sample", "update"}


def test_config_that_runs_here_has_no_failure() -> None:
    found = diagnose(load_config(BUILTIN, ["phases=[sft, rl]", "sft.data.path=synthetic:add"]))
    assert not found.failed, [each for each in found.checks if each.status == "fail"]
    assert "256 problems" in check(found, "data.train").found
    assert "demonstrations" in check(found, "sft.data").found
    assert set(found.memory_phases) == {"sample", "update", "sft"}


@pytest.mark.parametrize(
    ("override", "name", "message"),
    [
        ("data.train.path=nothing.json", "data.train", "nothing.json"),
        ("data.train.path=synthetic:ad", "data.train", "add"),
        ("env.id=maht", "environment", "math"),
        ("env.kwargs={famly: add}", "environment", "Did you mean 'family'?"),
        ("env={id: webshop, kwargs: {max_step: 3}}", "environment", "Did you mean 'max_steps'?"),
        ("agent.template=boxd", "prompt template", "boxed"),
        ("rollout.backend=hff", "backend", "hf"),
        ("model.path=./nothing", "model", "config.json"),
        ("requires=the moon", "recipe", "refuses to start"),
    ],
)
def test_what_will_not_work_is_said_with_what_to_do(override: str, name: str, message: str) -> None:
    found = diagnose(load_config(BUILTIN, [override]))
    assert check(found, name).status == "fail"
    assert message in check(found, name).advice
    assert [each.name for each in found.checks if each.status == "fail"] == [name]


def test_missing_tracker_names_its_extra() -> None:
    if machine.installed_version("wandb"):
        pytest.skip("wandb is installed")
    found = check(diagnose(load_config(BUILTIN, ["run.report_to=wandb"])), "tracker")
    assert found.status == "fail"
    assert "skill-ttrl[trackers]" in found.advice


WIDE = ["rl.micro_batch_size=4096", "rl.mini_batch_size=null", "rl.prompts_per_step=64", "rollout.max_batch_size=16"]


@pytest.mark.parametrize(
    ("available", "overrides", "advice"),
    [
        (0, [], "Train adapters"),
        (0, ["model.lora.r=4"], "smaller model"),
        (2_000_000_000, WIDE, "gradient_checkpointing=true"),
        (1_500_000_000, [*WIDE, "model.gradient_checkpointing=true"], "rl.micro_batch_size=1"),
        (700_000_000, ["rl.micro_batch_size=1", "rollout.max_new_tokens=2000"], "rollout.max_batch_size=512"),
    ],
)
def test_what_does_not_fit_names_the_setting_that_helps(
    monkeypatch: pytest.MonkeyPatch, available: int, overrides: list[str], advice: str
) -> None:
    monkeypatch.setattr("skill_ttrl.rl.device.device_memory", lambda device: available)
    found = check(diagnose(load_config(BUILTIN, overrides)), "memory")
    assert found.status == "fail"
    assert advice in found.advice


def test_package_out_of_range_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    real = machine.installed_version
    versions: dict[str, Any] = {"torch": "1.0", "peft": None}
    monkeypatch.setattr(machine, "installed_version", lambda name: versions.get(name, real(name)))
    found = next(each for each in machine.check_machine() if each.name == "packages")
    assert found.status == "fail"
    assert "torch 1.0 is outside" in found.found
    assert "peft is missing" in found.found


def test_folder_that_cannot_be_written_is_a_failure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")

    def refuse(**_: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    found = next(each for each in machine.check_machine() if each.name == "output")
    assert found.status == "fail"
    assert "--output" in found.advice


def test_a_vote_that_cannot_be_held_is_said() -> None:
    good = diagnose(load_config(BUILTIN, ["vote.strategy=restrain"]))
    assert check(good, "vote").found == "restrain, which needs base_majority_ratio"
    wrong = check(diagnose(load_config(BUILTIN, ["vote.strategy=majorty"])), "vote")
    assert wrong.status == "fail" and "Did you mean 'majority'" in f"{wrong.found} {wrong.advice}"
