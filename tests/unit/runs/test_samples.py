"""The folder of samples: whole chunks or nothing, and nobody else's."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from skill_ttrl.errors import RunFolderError
from skill_ttrl.runs.samples import IDENTITY, SAMPLES, SampleFolder, read_facts

MADE: dict[str, Any] = {
    "model": "sha256:1",
    "data": [{"name": "a.jsonl", "limit": None}],
    "draws": {"sample": {"tries": 4}},
}
CHUNKS = [2, 2, 1]
LINES = [f'{{"line": {number}}}' for number in range(5)]


def filled(path: Path, lines: int) -> Path:
    with SampleFolder.open(path, MADE) as folder:
        assert folder.begin(CHUNKS) == []
        folder.append(LINES[:lines])
    return path


@pytest.mark.parametrize(("lines", "kept"), [(0, 0), (1, 0), (2, 2), (3, 2), (4, 4), (5, 5)])
def test_a_part_of_a_chunk_is_cut(tmp_path: Path, lines: int, kept: int) -> None:
    filled(tmp_path / "s", lines)
    with SampleFolder.open(tmp_path / "s", MADE) as folder:
        assert folder.complete == (kept == 5)
        assert folder.begin(CHUNKS) == [f"{line}\n".encode() for line in LINES[:kept]]
        folder.append(LINES[kept:])
        assert folder.complete
    assert (tmp_path / "s" / SAMPLES).read_text().splitlines() == LINES


@pytest.mark.parametrize("torn", [b"{", b'{"line": 4', b'{"line": 4}'])
def test_a_torn_line_is_cut(tmp_path: Path, torn: bytes) -> None:
    filled(tmp_path / "s", 4)
    with (tmp_path / "s" / SAMPLES).open("ab") as stream:
        stream.write(torn)
    with SampleFolder.open(tmp_path / "s", MADE) as folder:
        assert len(folder.begin(CHUNKS)) == 4


def test_samples_of_something_else_are_refused_and_the_difference_is_named(tmp_path: Path) -> None:
    before = (filled(tmp_path / "s", 2) / SAMPLES).read_bytes()
    others: dict[str, dict[str, Any]] = {
        r'model "sha256:1" there, "sha256:2" here': {"model": "sha256:2"},
        r'data\.0\.name "a\.jsonl" there, "b\.jsonl" here': {"data": [{"name": "b.jsonl", "limit": None}]},
        r"data\.0\.limit null there, 3 here": {"data": [{"name": "a.jsonl", "limit": 3}]},
        r'data\.1\.name null there, "b\.jsonl" here': {"data": [*MADE["data"], {"name": "b.jsonl"}]},
        r"draws\.sample\.tries 4 there, 8 here": {"draws": {"sample": {"tries": 8}}},
    }
    for message, change in others.items():
        with pytest.raises(RunFolderError, match=f"holds samples of something else: .*{message}"):
            SampleFolder.open(tmp_path / "s", MADE | change)
    with SampleFolder.open(tmp_path / "s", MADE):  # the lock was freed each time
        pass
    assert (tmp_path / "s" / SAMPLES).read_bytes() == before


def test_tuples_are_lists_once_they_are_written(tmp_path: Path) -> None:
    for _ in range(2):
        with SampleFolder.open(tmp_path / "s", {"stop": ("a", "b"), "none": ()}):
            pass


def test_facts_are_noted_and_decide_nothing(tmp_path: Path) -> None:
    with SampleFolder.open(tmp_path / "s", MADE) as folder:
        assert folder.facts is None
        folder.begin(CHUNKS, {"trained_on": ["a"]})
    with SampleFolder.open(tmp_path / "s", MADE) as folder:
        assert folder.facts == {"trained_on": ["a"]}
        folder.begin(CHUNKS, {"trained_on": None})
    assert read_facts(tmp_path / "s") == {"trained_on": None} and read_facts(tmp_path) is None


def test_a_foreign_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "cat.jpg").write_bytes(b"")
    with pytest.raises(RunFolderError, match=r"not empty and no folder of samples \(found: cat\.jpg\)"):
        SampleFolder.open(tmp_path, MADE)
    assert [entry.name for entry in tmp_path.iterdir()] == ["cat.jpg"]
    with pytest.raises(RunFolderError, match="it is a file"):
        SampleFolder.open(tmp_path / "cat.jpg", MADE)


def test_more_lines_than_there_can_be(tmp_path: Path) -> None:
    filled(tmp_path / "s", 5)
    with (tmp_path / "s" / SAMPLES).open("a") as stream:
        stream.write("{}\n")
    with SampleFolder.open(tmp_path / "s", MADE) as folder, pytest.raises(RunFolderError, match="6 lines, at most 5"):
        folder.begin(CHUNKS)


def test_one_process_at_a_time(tmp_path: Path) -> None:
    with SampleFolder.open(tmp_path / "s", MADE), pytest.raises(RunFolderError, match="already open"):
        SampleFolder.open(tmp_path / "s", MADE)


def test_a_damaged_identity_and_another_schema(tmp_path: Path) -> None:
    filled(tmp_path / "s", 1)
    identity = tmp_path / "s" / IDENTITY
    whole = json.loads(identity.read_text())
    identity.write_text(json.dumps({**whole, "schema_version": 99}))
    with pytest.raises(RunFolderError, match="schema 99"):
        SampleFolder.open(tmp_path / "s", MADE)
    identity.write_text("{")
    with pytest.raises(RunFolderError, match=r"Cannot read .*samples\.json"):
        SampleFolder.open(tmp_path / "s", MADE)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full here")
def test_a_full_disk_is_said(tmp_path: Path) -> None:
    with SampleFolder.open(tmp_path / "t", MADE) as folder:
        folder.begin(CHUNKS)
        (tmp_path / "t" / SAMPLES).symlink_to("/dev/full")
        with pytest.raises(RunFolderError, match=r"Cannot write .*samples\.jsonl"):
            folder.append(LINES[:1])
