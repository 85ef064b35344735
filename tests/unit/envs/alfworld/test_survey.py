"""Many games read by several processes: what one would find, and no process is left behind, however it ends."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from skill_ttrl.envs.alfworld import survey
from skill_ttrl.errors import EnvError
from tests.alfworld_kitchen import write_game

NAMES = tuple(f"pick_and_place_simple-Apple-None-Fridge-1/trial_{letter}" for letter in "ABC")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A split of three games."""
    for name in NAMES:
        write_game(tmp_path, "train", name)
    return tmp_path / "json_2.1.1" / "train"


@pytest.fixture
def several(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes, however few games there are."""
    monkeypatch.setattr(survey, "GAMES_PER_PROCESS", 1)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1})


def test_several_processes_read_what_one_would(folder: Path, request: pytest.FixtureRequest) -> None:
    names = [*NAMES, "pick_and_place_simple-Apple-None-Fridge-3/trial_ü\n"]
    write_game(folder.parents[1], "train", names[-1], text="{}")
    alone = survey.look_at_all(folder, names)
    told: list[int] = []
    request.getfixturevalue("several")
    assert survey.look_at_all(folder, names, lambda done, total: told.append(done)) == alone
    assert sorted(told) == [1, 2, 3, 4] and {found.status for found in alone} == {survey.PLAYABLE, survey.DAMAGED}


@pytest.mark.usefixtures("several")
def test_reading_that_is_stopped_leaves_no_process_behind(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stuck = folder / NAMES[1] / "game.tw-pddl"
    stuck.unlink()
    os.mkfifo(stuck)  # who reads it waits for ever
    started: list[subprocess.Popen[Any]] = []

    class Noted(subprocess.Popen[Any]):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            started.append(self)

    monkeypatch.setattr(subprocess, "Popen", Noted)

    def stop(done: int, total: int) -> None:
        while len(started) < 2:
            time.sleep(0.01)
        raise KeyboardInterrupt

    rescue = threading.Timer(60, stuck.write_bytes, [b"{}"])
    rescue.start()
    with pytest.raises(KeyboardInterrupt):
        survey.look_at_all(folder, NAMES[:2], stop)
    assert rescue.is_alive() and [process.poll() is None for process in started] == [False, False]
    rescue.cancel()


@pytest.mark.usefixtures("several")
def test_a_process_that_ends_early_is_an_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survey, "_environment", lambda: {"PYTHONPATH": "/nowhere", "PYTHONHOME": "/nowhere"})
    with pytest.raises(EnvError, match=r"A process that read the games in .* ended early \(status"):
        survey.look_at_all(folder, NAMES)


def test_a_process_that_starts_while_the_reading_ends_is_ended_too(folder: Path) -> None:
    over = threading.Event()
    over.set()
    with pytest.raises(EnvError, match="status -9"):
        survey._elsewhere(folder, [NAMES[0]] * 5000, lambda found: found, [], over)
