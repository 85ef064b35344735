"""Generated games in the official engine, as it is installed: it reads them, and shows what the fast engine shows."""

from __future__ import annotations

import os
from itertools import islice
from pathlib import Path

import pytest

from benchmarks.alfworld_official import OfficialEngine
from benchmarks.alfworld_walks import WALKS, walk
from skill_ttrl.envs.alfworld.engine import FastEngine
from skill_ttrl.envs.alfworld.games import TASK_TYPES, load_game
from skill_ttrl.envs.alfworld.maker import write_games

STEPS = 6
"""Frames of a walk in the ordinary suite; the official engine takes about 0.1 s for each."""

SPLIT = "valid_unseen"


@pytest.fixture(scope="module", autouse=True)
def the_engine() -> None:
    """Its import sets `$ALFWORLD_DATA`, which other tests read: it is put back."""
    before = os.environ.get("ALFWORLD_DATA")
    pytest.importorskip("textworld", reason="needs the extra alfworld, which takes a C++ compiler")
    pytest.importorskip("alfworld.info")
    if before is None:
        del os.environ["ALFWORLD_DATA"]


@pytest.fixture(scope="module")
def games(tmp_path_factory: pytest.TempPathFactory, the_engine: None) -> Path:
    """One generated game of each type, and as many to train on."""
    root = tmp_path_factory.mktemp("generated")
    for split in (SPLIT, "train"):
        write_games(root, split, len(TASK_TYPES), seed=283)  # in small rooms: they load faster
    return root


def game_of(root: Path, task_type: str) -> Path:
    (game,) = root.glob(f"json_2.1.1/{SPLIT}/{task_type}-*/trial_*/game.tw-pddl")
    return game


def differences(path: Path, walks: list[tuple[str, int]]) -> list[tuple[str, str]]:
    """(walk, command) where the two engines show different frames, and the frames that were compared, at the end."""
    loaded = load_game(path)
    official, fast = OfficialEngine(path), FastEngine(loaded.world)
    found, compared = [], 0
    for name, frames in walks:
        both = zip(
            *(islice(walk(engine, path.parts[-3], name, loaded.walkthrough), frames) for engine in (official, fast)),
            strict=True,
        )
        for theirs, ours in both:
            compared += 1
            if theirs != ours or official.state() != fast.state():
                found.append((name, theirs[0]))
    assert compared > len(walks)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("task_type", TASK_TYPES)
def test_both_engines_show_the_same_of_generated_games(games: Path, task_type: str) -> None:
    """The whole walkthrough, and the beginning of one of the other walks in turn."""
    other = WALKS[1 + TASK_TYPES.index(task_type) % (len(WALKS) - 1)]
    assert differences(game_of(games, task_type), [("walkthrough", 99), (other, STEPS)]) == []


@pytest.mark.alfworld
@pytest.mark.parametrize("task_type", TASK_TYPES)
def test_both_engines_show_the_same_on_all_walks_to_their_ends(games: Path, task_type: str) -> None:
    assert differences(game_of(games, task_type), [(name, 99) for name in WALKS]) == []
