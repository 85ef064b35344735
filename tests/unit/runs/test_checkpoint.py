"""Checkpoints: whole or not there, damage is named, and going on from one puts the folder back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from skill_ttrl.config import RunConfig, SkillTTRLConfig
from skill_ttrl.errors import CheckpointError
from skill_ttrl.runs.checkpoint import (
    list_checkpoints,
    load_state,
    load_tensors,
    newest,
    restore_to_checkpoint,
    save_checkpoint,
    verify,
)
from skill_ttrl.runs.folder import RunFolder


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path / "run", SkillTTRLConfig(phases=["sft", "rl"]))


def save(folder: RunFolder, phase: str, step: int, keep: int | None = None) -> Path:
    def write(path: Path) -> dict[str, Any]:
        (path / "nested").mkdir()
        (path / "nested" / "weights.bin").write_bytes(bytes([step % 256]) * 100)
        return {"optimizer": {"state": {0: torch.full((3,), float(step))}, "lr": 0.1}}

    folder.append_jsonl("metrics.jsonl", [json.dumps({"phase": phase, "step": step})])
    return save_checkpoint(folder, phase, step, write=write, state={"seen": step}, keep=keep, card=f"# {step}\n")


def names(folder: RunFolder) -> list[str]:
    return [checkpoint.path.name for checkpoint in list_checkpoints(folder)]


def test_round_trip(folder: RunFolder) -> None:
    path = save(folder, "rl", 3)
    assert path == folder.path / "checkpoints" / "rl-000003"
    verify(path)
    state = load_state(path)
    assert (state["phase"], state["step"], state["state"]) == ("rl", 3, {"seen": 3})
    assert state["offsets"] == folder.sizes()
    tensors = load_tensors(path)
    assert torch.equal(tensors["optimizer"]["state"][0], torch.full((3,), 3.0)) and tensors["optimizer"]["lr"] == 0.1
    assert (path / "README.md").read_text() == "# 3\n"


def test_keep_leaves_the_newest_of_each_phase(folder: RunFolder) -> None:
    for step in (100, 200, 300):
        save(folder, "sft", step, keep=1)
    for step in (1, 2, 3, 10):
        save(folder, "rl", step, keep=2)
    assert names(folder) == ["sft-000300", "rl-000003", "rl-000010"]
    assert sorted(entry.name for entry in folder.checkpoints.iterdir()) == sorted(names(folder))


def test_a_run_killed_between_saving_and_removing_removes_when_it_goes_on(tmp_path: Path) -> None:
    config = SkillTTRLConfig(phases=["sft", "rl"], run=RunConfig(save_total_limit=2))
    folder = RunFolder.create(tmp_path / "run", config)
    for step in (1, 2, 3):
        save(folder, "sft", step, keep=None)  # as a kill before the removal leaves them
    restore_to_checkpoint(folder, newest(folder))
    assert names(folder) == ["sft-000002", "sft-000003"]


@pytest.mark.parametrize(
    ("file", "damage", "message"),
    [
        ("nested/weights.bin", lambda f: f.write_bytes(b"x" * 100), r"nested/weights.bin has changed"),
        ("trainer.pt", lambda f: f.write_bytes(f.read_bytes()[:-10]), r"trainer.pt has \d+ bytes instead of \d+"),
        ("state.json", lambda f: f.unlink(), r"state.json is missing"),
        ("manifest.json", lambda f: f.write_text("{"), r"cannot read manifest.json"),
    ],
)
def test_damage_is_named(folder, file, damage, message) -> None:  # type: ignore[no-untyped-def]
    save(folder, "rl", 1)
    damage(save(folder, "rl", 2) / file)
    with pytest.raises(CheckpointError, match=message) as caught:
        newest(folder)
    assert f"remove {folder.checkpoints / 'rl-000002'}" in str(caught.value)


def test_a_checkpoint_whose_files_lost_lines_is_damaged_too(folder: RunFolder) -> None:
    save(folder, "rl", 1)
    save(folder, "rl", 2)
    folder.close()
    metrics = folder.path / "metrics.jsonl"
    metrics.write_bytes(metrics.read_bytes()[:-5])
    with RunFolder.open(folder.path) as again:
        with pytest.raises(CheckpointError, match=r"metrics.jsonl holds \d+ bytes, but it held \d+"):
            newest(again)
    with RunFolder.open(folder.path, lock=False) as reader:  # who only reads a checkpoint needs none of these files
        metrics.write_bytes(b"")
        assert newest(reader) is not None


def test_what_was_written_after_a_checkpoint_is_cut(folder: RunFolder) -> None:
    save(folder, "rl", 1)
    folder.append_jsonl("trajectories.jsonl", ["{}"])
    (folder.checkpoints / ".tmp-rl-000002-99").mkdir()
    reader = RunFolder.open(folder.path, lock=False)
    assert newest(reader) == newest(reader) and len(list(folder.checkpoints.iterdir())) == 2, "a reader removes nothing"
    assert restore_to_checkpoint(folder, newest(folder)) == {"seen": 1}
    assert [entry.name for entry in folder.checkpoints.iterdir()] == ["rl-000001"]
    assert (folder.path / "metrics.jsonl").read_text() == '{"phase": "rl", "step": 1}\n'
    assert folder.sizes()["trajectories.jsonl"] == 0
    assert restore_to_checkpoint(folder, None) == {} and set(folder.sizes().values()) == {0}


class Code:
    """Something a pickle could run."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (print, ("executed",))


def test_tensors_never_run_code(folder: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    path = save(folder, "rl", 1)
    torch.save({"x": Code()}, path / "trainer.pt")
    for _ in range(2):
        with pytest.raises(CheckpointError, match=r"cannot read trainer\.pt"):
            load_tensors(path)
        (path / "trainer.pt").unlink(missing_ok=True)
    assert "executed" not in capsys.readouterr().out
