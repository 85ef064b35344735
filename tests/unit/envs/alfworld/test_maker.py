"""Generated games: won by their walkthroughs, sensible, the same everywhere, and on the disk whole or not at all."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from skill_ttrl.envs.alfworld import maker
from skill_ttrl.envs.alfworld import maker as ontology
from skill_ttrl.envs.alfworld.games import SPLITS, TASK_TYPES
from skill_ttrl.envs.alfworld.maker import (
    OFFICIAL_UNSEEN,
    Goal,
    ensure_generated,
    goals_by_room,
    read_ontology,
    write_games,
)
from skill_ttrl.errors import EnvError

DEFAULT_GAMES, FIRST_GAMES = "09577125371c55af", "f83b01421650c6c2"
"""Hashes of all default games and of the first six of each split, made from alfworld 0.4.2. Where it changes, `games.GENERATOR` changes too."""


@pytest.fixture(scope="module", autouse=True)
def the_package() -> None:
    """Its files are enough; none of it is imported."""
    try:
        read_ontology()
    except EnvError as error:
        pytest.skip(f"needs the files of the package alfworld: {error}")


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def default_games(cache: Path) -> Path:
    """The folder that is made where there are no official games."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(cache))
        return ensure_generated()


def paths(root: Path, split: str = "*") -> list[Path]:
    return sorted(root.glob(f"json_2.1.1/{split}/*/trial_*/game.tw-pddl"))


def digest(root: Path) -> str:
    found = hashlib.blake2b(digest_size=8)
    for path in sorted(path for path in (root / "json_2.1.1").rglob("*") if path.is_file()):
        found.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return found.hexdigest()


def test_train_and_valid_seen_share_rooms_and_no_goal() -> None:
    def all_of(split: str) -> set[Goal]:
        return {each for name in TASK_TYPES for own in goals_by_room(split, name).values() for each in own}

    train, seen, unseen = map(all_of, SPLITS)
    assert min(len(train), len(seen), len(unseen)) > 1000
    assert not train & seen
    rooms = {each.scene for each in train | seen}
    assert {each.scene for each in seen} <= rooms and len(rooms) > 80
    assert not rooms & {each.scene for each in unseen}
    assert not rooms & OFFICIAL_UNSEEN


def test_the_first_games_are_the_same_bytes_on_every_machine(tmp_path: Path) -> None:
    for split in SPLITS:
        write_games(tmp_path, split, 6)
    assert read_ontology().version != "0.4.2" or digest(tmp_path) == FIRST_GAMES


@pytest.mark.slow
def test_the_default_games_are_the_same_bytes_on_every_machine(default_games: Path) -> None:
    if read_ontology().version != "0.4.2":
        pytest.skip("the hash is of games from alfworld 0.4.2")
    assert digest(default_games) == DEFAULT_GAMES


def run_with_few_games(cache: Path, end: str) -> subprocess.Popen[bytes]:
    """Another process that fills the cache, with fewer games than usual."""
    program = (
        "import os, signal; from skill_ttrl.envs.alfworld import maker as games; "
        "games.COUNTS = {'train': 12, 'valid_seen': 6, 'valid_unseen': 6}; " + end
    )
    return subprocess.Popen(
        [sys.executable, "-c", program], env={**os.environ, "XDG_CACHE_HOME": str(cache)}, stdout=subprocess.PIPE
    )


@pytest.mark.slow
def test_a_process_killed_while_it_fills_the_cache_leaves_nothing_that_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill = "games.ensure_generated(lambda done, _: done == 8 and os.kill(os.getpid(), signal.SIGKILL))"
    killed = run_with_few_games(tmp_path, kill)
    killed.communicate()
    assert killed.returncode == -signal.SIGKILL
    assert not list(tmp_path.glob("skill-ttrl/alfworld/generated-*"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(maker, "COUNTS", {"train": 6, "valid_seen": 6, "valid_unseen": 6})
    root = ensure_generated()
    assert len(paths(root)) == 18 and sorted(path.name for path in root.parent.iterdir()) == [".lock", root.name]
    assert ensure_generated(lambda done, _: pytest.fail("made again")) == root


@pytest.fixture
def unread() -> Iterator[None]:
    """What was read of the package is forgotten, before and after."""
    ontology.read_ontology.cache_clear()
    yield
    ontology.read_ontology.cache_clear()


@pytest.mark.usefixtures("unread")
def test_without_the_package_the_message_says_what_to_install_and_what_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ontology, "PACKAGE", "alfworld-that-nobody-has")
    for make in (lambda: ensure_generated(), lambda: write_games(tmp_path / "games", "train", 1)):
        with pytest.raises(EnvError) as refused:
            make()
        for part in ("pip install --no-deps alfworld==0.4.2", "pip install -e '.[alfworld]'", "ALFWORLD_DATA"):
            assert part in str(refused.value)
    assert not (tmp_path / "games").exists()


def test_reading_the_package_imports_nothing_of_it_and_sets_nothing(tmp_path: Path) -> None:
    program = (
        "import os, sys; from skill_ttrl.envs.alfworld.maker import write_games; import pathlib; "
        f"write_games(pathlib.Path({str(tmp_path / 'games')!r}), 'train', 1); "
        "assert 'ALFWORLD_DATA' not in os.environ; "
        "assert not {'alfworld', 'textworld', 'torch'} & set(sys.modules), sorted(sys.modules)"
    )
    environment = {name: value for name, value in os.environ.items() if name != "ALFWORLD_DATA"}
    subprocess.run([sys.executable, "-c", program], env={**environment, "HOME": str(tmp_path)}, check=True)
    assert not (tmp_path / ".cache" / "alfworld").exists()
