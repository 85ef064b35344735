"""The folder of samples: lines whole or not there, and nobody else's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from skill_ttrl.errors import ConfigError, RunFolderError
from skill_ttrl.runs.episode_logs import SAMPLES, TRAJECTORIES, SampleFolder, read_episode
from skill_ttrl.runs.folder import trajectory_lines
from skill_ttrl.types import Group, Task, Trajectory

MADE: dict[str, Any] = {
    "model": "sha256:1",
    "data": [{"name": "a.jsonl", "limit": None}],
    "draws": {"sample": {"rollouts_per_task": 4}},
}
LINES = [f'{{"line": {number}}}' for number in range(5)]


def filled(path: Path, lines: int) -> Path:
    with SampleFolder(path, MADE) as folder:
        folder.note(lines=len(LINES))
        folder.append(LINES[:lines])
        assert folder.complete == (lines == len(LINES))
    return path


@pytest.mark.parametrize("torn", [b"{", b'{"line": 4', b'{"line": 4}'])
def test_a_torn_line_is_cut(tmp_path: Path, torn: bytes) -> None:
    filled(tmp_path / "s", 4)
    with (tmp_path / "s" / SAMPLES).open("ab") as stream:
        stream.write(torn)
    with SampleFolder(tmp_path / "s", MADE) as folder:
        assert len(list(folder.lines())) == 4 and folder.cut == len(torn)


def test_samples_of_something_else_are_refused_and_the_difference_is_named(tmp_path: Path) -> None:
    before = (filled(tmp_path / "s", 2) / SAMPLES).read_bytes()
    others: dict[str, dict[str, Any]] = {
        r'model "sha256:1" there, "sha256:2" here': {"model": "sha256:2"},
        r'data\.0\.name "a\.jsonl" there, "b\.jsonl" here': {"data": [{"name": "b.jsonl", "limit": None}]},
        r"data\.0\.limit null there, 3 here": {"data": [{"name": "a.jsonl", "limit": 3}]},
        r'data\.1\.name null there, "b\.jsonl" here': {"data": [*MADE["data"], {"name": "b.jsonl"}]},
        r"draws\.sample\.rollouts_per_task 4 there, 8 here": {"draws": {"sample": {"rollouts_per_task": 8}}},
    }
    for message, change in others.items():
        with pytest.raises(RunFolderError, match=f"holds samples of something else: .*{message}"):
            SampleFolder(tmp_path / "s", MADE | change)
    with SampleFolder(tmp_path / "s", MADE):  # the lock was freed each time
        pass
    assert (tmp_path / "s" / SAMPLES).read_bytes() == before



def test_a_rollout_is_found_by_its_id_and_a_wrong_id_names_the_nearest(tmp_path: Path) -> None:
    group = Group(Task("a:1", "E-v0"), tuple(Trajectory(Task("a:1", "E-v0"), (), str(n), "terminated") for n in (0, 1)))
    (tmp_path / TRAJECTORIES).write_text("\n".join(["[]", *trajectory_lines("rl", 12, group)]) + "\n")
    place, found = read_episode(tmp_path, "rl:12:a:1:1")
    assert (place.phase, place.step, place.sample, found.answer) == ("rl", 12, 1, "1")
    with pytest.raises(ConfigError, match=r"rl:12:a:1:0.* .*trajectories\.jsonl:1 cannot be read"):
        read_episode(tmp_path, "rl:12:a:1:2")
