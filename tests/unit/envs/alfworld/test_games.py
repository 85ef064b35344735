"""Collections of games: where they are looked for, what is left out, and an index that notices what has changed."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from skill_ttrl.envs.alfworld import games as index
from skill_ttrl.envs.alfworld.games import OFFICIAL, GameList, find_data, forget, index_file, open_games
from skill_ttrl.errors import EnvError
from tests.alfworld_kitchen import content, write_game

PLACE, HEAT = "pick_and_place_simple", "pick_heat_then_place_in_recep"
NAMES = (
    f"{PLACE}-Apple-None-Fridge-1/trial_A",
    f"{PLACE}-Apple-None-Fridge-1/trial_B",
    f"{HEAT}-Mug-None-Cabinet-2/trial_C",
)


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache for each test, and no data set of this machine's."""
    cache = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    forget()
    yield cache
    forget()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Three games of two types to train on, one to measure on."""
    for name in NAMES:
        write_game(tmp_path, "train", name)
    write_game(tmp_path, "valid_seen", NAMES[0])
    return tmp_path


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the games that were read, as they are."""
    names: list[str] = []
    look_at = index.look_at

    def watched(folder: Path, name: str) -> tuple[str, str]:
        names.append(name)
        return look_at(folder, name)

    monkeypatch.setattr(index, "look_at", watched)
    return names


def ids(games: GameList) -> list[str]:
    return [game.id.partition("/")[2] for game in games]


def change(path: Path, text: str) -> None:
    """Write a file again, with a time of change that differs however coarse the file system's clock is."""
    changed = path.stat().st_mtime_ns
    path.write_text(text, encoding="utf-8")
    os.utime(path, ns=(changed, changed + 1_000_000))


def test_games_are_sorted_by_id_and_know_their_type_and_source(data: Path) -> None:
    games = open_games(data, "train")
    assert ids(games) == sorted(NAMES)
    assert [game.task_type for game in games] == [PLACE, PLACE, HEAT]
    assert {game.split for game in games} == {"train"} and {game.source for game in games} == {OFFICIAL}
    assert all(game.path.is_file() for game in games) and not games.skipped


def test_a_variable_without_games_is_an_error_with_both_ways_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path))
    with pytest.raises(
        EnvError, match=r"no games in .*\$ALFWORLD_DATA.*expected .*json_2\.1\.1.*\"generated\", or unset ALFWORLD"
    ):
        open_games(None, "train")
    with pytest.raises(EnvError, match=r"no games in .*nowhere.*data=\"generated\"\.$"):
        open_games(tmp_path / "nowhere", "train")
    for odd in ("~nobody-of-this-name/x", "a\0b", "x" * 5000, "."):
        with pytest.raises(EnvError, match="There are no games in"):
            open_games(odd, "train")


def test_importing_the_package_alfworld_chooses_no_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It sets the variable to a folder that it creates empty; by a user, and with games in it, that folder counts."""
    default = tmp_path / ".cache" / "alfworld"
    default.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("ALFWORLD_DATA", str(default))
    monkeypatch.delitem(sys.modules, "alfworld.info", raising=False)  # another test may have imported it
    with pytest.raises(EnvError, match="no games in"):
        find_data(None)
    monkeypatch.setitem(sys.modules, "alfworld.info", sys)
    assert find_data(None).folder is None
    with pytest.raises(EnvError, match="ALFWORLD_DATA is not set"):
        find_data("official")
    write_game(default, "train", NAMES[0])
    assert find_data(None).folder == find_data("official").folder == default / "json_2.1.1"


def test_a_split_that_is_not_there_is_named_with_those_that_are(data: Path) -> None:
    with pytest.raises(EnvError, match=r"no split 'trian' in .*Did you mean 'train'\? Known: train, valid_seen\."):
        open_games(data, "trian")
    with pytest.raises(EnvError, match="'eval_in_distribution' is called 'valid_seen'"):
        open_games(data, "eval_in_distribution")
    for split in ("", ".", "..", "../train", "train/..", "x" * 1_000_000):
        with pytest.raises(EnvError, match="no split") as error:
            open_games(data, split)
        assert len(str(error.value)) < 1000


def test_task_types_choose_games(data: Path) -> None:
    assert ids(open_games(data, "train", task_types=[HEAT])) == [NAMES[2]]
    assert ids(open_games(data, "train", task_types=HEAT)) == [NAMES[2]]  # one alone is meant, not its letters
    assert len(open_games(data, "train", task_types=[HEAT, PLACE])) == 3
    with pytest.raises(
        EnvError, match=r"no task type 'pick_heat_then_place'\. Did you mean 'pick_heat_then_place_in_recep'\?"
    ):
        open_games(data, "train", task_types=["pick_heat_then_place"])
    with pytest.raises(
        EnvError, match=r"There is no game of look_at_obj_in_light in .*; its 3 games are of: pick_and_place"
    ):
        open_games(data, "train", task_types=["look_at_obj_in_light"])


def test_a_game_is_found_by_its_id_in_any_split(data: Path) -> None:
    games = open_games(data, "train", task_types=[HEAT])
    assert games.find(f"train/{NAMES[0]}").task_type == PLACE
    assert games.of("train").find(games[0].id) == games[0]
    assert games.find(f"valid_seen/{NAMES[0]}").split == "valid_seen"  # which has none of the type
    every = open_games(data, "train")
    assert every.find(f"valid_seen/{NAMES[0]}").split == "valid_seen"


def test_damaged_games_are_left_out_counted_and_named(data: Path) -> None:
    path = write_game(data, "train", f"{PLACE}-Apple-None-Fridge-3/trial_D", text='{"pddl_domain": "(define')
    with pytest.warns(
        UserWarning, match=rf"1 of the 4 games in .* are left out: The game {re.escape(str(path))} cannot be read"
    ):
        games = open_games(data, "train")
    assert ids(games) == sorted(NAMES)
    assert [*games.skipped] == [f"train/{path.parent.parent.name}/trial_D"]
    with pytest.raises(EnvError, match=r"The game train/.*trial_D is left out: The game .* cannot be read"):
        games.find(next(iter(games.skipped)))


def test_what_alfworld_leaves_out_is_counted_by_reason_and_never_refused(data: Path) -> None:
    write_game(data, "train", f"{PLACE}-AppleSliced-None-Fridge-3/trial_D")
    write_game(data, "train", "pick_and_place_with_movable_recep-Apple-Bowl-Fridge-3/trial_E")
    write_game(data, "train", f"{PLACE}-Apple-None-Fridge-4/trial_F", solvable=False)
    write_game(data, "train", "notes/trial_G")
    (data / "json_2.1.1" / "train" / f"{PLACE}-Apple-None-Fridge-5" / "trial_H").mkdir(parents=True)
    said = (
        r"4 of the 7 games in .* are left out: 2: ALFWorld plays no task with 'movable' or 'Sliced' in its name; "
        r"its folder's name is none of the six task types; it is not marked as solvable\."
    )
    with pytest.warns(UserWarning, match=said):
        games = open_games(data, "train")
    assert ids(games) == sorted(NAMES) and len(games.skipped) == 4
    assert "it is not marked as solvable" in games.skipped.values()


def test_games_are_read_once(data: Path, read: list[str]) -> None:
    told: list[tuple[int, int]] = []
    first = open_games(data, "train", progress=lambda done, total: told.append((done, total)))
    assert sorted(read) == sorted(NAMES) and told == [(1, 3), (2, 3), (3, 3)]
    forget()  # as in another process
    assert list(open_games(data, "train")) == list(first) and len(read) == 3


def test_what_changes_is_noticed_and_nothing_else_is_read_again(data: Path, read: list[str]) -> None:
    folder, new = data / "json_2.1.1" / "train", f"{HEAT}-Mug-None-Cabinet-9/trial_D"

    def opened(count: int, *again: str) -> None:
        """What another process would read."""
        forget()
        assert len(open_games(data, "train")) == count and read == [*again]
        read.clear()

    open_games(data, "train")
    read.clear()
    write_game(data, "train", new)  # a new task folder
    opened(4, new)
    change(folder / NAMES[1] / "game.tw-pddl", "{}")  # one that is damaged later
    with pytest.warns(UserWarning, match="has no 'pddl_domain'"):
        opened(3, NAMES[1])
    change(folder / NAMES[1] / "game.tw-pddl", json.dumps(content()))  # and mended
    opened(4, NAMES[1])
    (folder / NAMES[2] / "game.tw-pddl").unlink()
    shutil.rmtree(folder / NAMES[0])
    opened(2)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", "null", "\ud800"])
def test_a_damaged_index_is_made_again(data: Path, text: str) -> None:
    open_games(data, "train")
    path = index_file(data / "json_2.1.1" / "train")
    whole = path.read_bytes()
    path.write_bytes(text.encode(errors="surrogatepass"))
    forget()
    assert len(open_games(data, "train")) == 3
    assert path.read_bytes() == whole
