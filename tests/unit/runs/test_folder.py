"""The run folder: what it refuses, what it repairs, and that nothing is left half written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from skill_ttrl.config import SkillTTRLConfig, load_config
from skill_ttrl.errors import RunFolderError
from skill_ttrl.runs.folder import APPEND_FILES, SCHEMA_VERSION, RunFolder
from tests.preloaded import run_code


def make(path: Path) -> RunFolder:
    return RunFolder.create(path, SkillTTRLConfig(name="t"))


def test_a_creation_that_was_killed_can_be_started_again(tmp_path: Path) -> None:
    path = tmp_path / "a"
    make(path).close()
    (path / "run.json").unlink()
    (path / ".run.json.tmp-123").write_text("{")
    assert not RunFolder.exists(path)
    make(path).close()
    assert RunFolder.exists(path)


def test_open_says_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="nothing is there"):
        RunFolder.open(tmp_path / "nowhere")
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(RunFolderError, match="it has no run.json"):
        RunFolder.open(tmp_path)
    with pytest.raises(RunFolderError, match="it is a file"):
        RunFolder.open(tmp_path / "notes.txt")
    make(tmp_path / "a").close()
    info = json.loads((tmp_path / "a" / "run.json").read_text())
    for version, by in ((99, "9.0"), (1, "0.1.0")):  # 1: of before settings and fields lost their former names
        (tmp_path / "a" / "run.json").write_text(json.dumps(info | {"schema_version": version, "skill_ttrl": by}))
        said = rf"schema version {version}, written by skill-ttrl {by}.*reads schema {SCHEMA_VERSION}.*choose another --output"
        with pytest.raises(RunFolderError, match=said):
            RunFolder.open(tmp_path / "a")
    (tmp_path / "a" / "run.json").write_text("[]")
    with pytest.raises(RunFolderError, match="Cannot read"):
        RunFolder.open(tmp_path / "a")


@pytest.mark.parametrize("torn", ['{"half', "x" * 200_000])
def test_a_torn_last_line_is_cut_on_opening(tmp_path: Path, torn: str) -> None:
    with make(tmp_path / "a") as folder:
        folder.append_jsonl("metrics.jsonl", ['{"a": 1}'])
    with (tmp_path / "a" / "metrics.jsonl").open("a") as stream:
        stream.write(torn)
    RunFolder.open(tmp_path / "a", lock=False).close()
    assert (tmp_path / "a" / "metrics.jsonl").read_text() == '{"a": 1}\n' + torn, "a reader must not repair"
    RunFolder.open(tmp_path / "a").close()
    assert (tmp_path / "a" / "metrics.jsonl").read_text() == '{"a": 1}\n'


_TRY_OPEN = """
import sys
from skill_ttrl.errors import RunFolderError
from skill_ttrl.runs.folder import RunFolder
try:
    RunFolder.open(sys.argv[1])
except RunFolderError as error:
    print(error)
"""


def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    import os

    with make(tmp_path / "a") as folder:
        with pytest.raises(RunFolderError, match="already open in this process"):
            RunFolder.open(folder.path)
        assert f"Another process ({os.getpid()}) is writing" in run_code(_TRY_OPEN, folder.path).stdout
        RunFolder.open(folder.path, lock=False).close()
        # closing a reader must not free the writer's lock
        assert "Another process" in run_code(_TRY_OPEN, folder.path).stdout
    RunFolder.open(folder.path).close()


_FULL_DISK = """
import resource, sys
from pathlib import Path
import torch
from skill_ttrl.config import SkillTTRLConfig
from skill_ttrl.errors import RunFolderError
from skill_ttrl.runs.checkpoint import list_checkpoints, save_checkpoint
from skill_ttrl.runs.folder import RunFolder

folder = RunFolder.create(sys.argv[1], SkillTTRLConfig())
folder.append_jsonl("metrics.jsonl", ["{}"])
folder.write_text("report.html", "old")
before = sorted((str(p), p.stat().st_size) for p in folder.path.rglob("*"))
limit = 20_000  # bytes a file may have: writes beyond it fail as on a full disk
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

def save_safetensors(path):
    from safetensors.torch import save_file
    save_file({"w": torch.zeros(100_000)}, path / "model.safetensors")

def checkpoint(save_model=lambda path: None, tensors={}):
    save_checkpoint(folder, "rl", 1, write=lambda path: (save_model(path), tensors)[1], state={}, keep=None)

for name, write in {
    "append": lambda: folder.append_jsonl("metrics.jsonl", ["x" * 100] * 1000),
    "text": lambda: folder.write_text("report.html", "x" * 100_000),
    "new file": lambda: folder.write_json("new.json", "x" * 100_000),
    "model": lambda: checkpoint(save_model=lambda path: (path / "m.bin").write_bytes(b"x" * 100_000)),
    "safetensors": lambda: checkpoint(save_model=save_safetensors),
    "tensors": lambda: checkpoint(tensors={"moments": torch.zeros(100_000)}),
}.items():
    try:
        write()
    except RunFolderError as error:
        print(name, "|", error)
    else:
        sys.exit(f"{name} was written")
    (folder.path / "checkpoints").exists() and (folder.path / "checkpoints").rmdir()  # must be empty
    after = sorted((str(p), p.stat().st_size) for p in folder.path.rglob("*"))
    if after != before:
        sys.exit(f"{name} left {set(after) ^ set(before)}")
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
checkpoint()
print("then", len(list_checkpoints(folder)))
"""


@pytest.mark.slow
def test_a_full_disk_is_said_and_leaves_everything_as_it_was(tmp_path: Path) -> None:
    done = run_code(_FULL_DISK, tmp_path / "a")
    assert done.returncode == 0, done.stderr + done.stdout
    lines = done.stdout.splitlines()
    assert len(lines) == 7 and lines[-1] == "then 1"
    assert all(
        "Cannot write" in line and ("File too large" in line or "the disk refused" in line) for line in lines[:-1]
    ), lines
