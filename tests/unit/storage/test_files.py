"""Folders that are written whole replace nothing that another process has written meanwhile."""

from __future__ import annotations

import stat
import threading
from collections import UserDict
from collections.abc import ItemsView
from pathlib import Path

import pytest

from skill_ttrl.storage.files import made_once, remove_unfinished, unfinished, waiting_for, write_folder


def test_a_folder_that_appears_meanwhile_is_left_as_it_is(tmp_path: Path) -> None:
    place = tmp_path / "new" / "bank"

    class Overtaken(UserDict[str, bytes]):
        def items(self) -> ItemsView[str, bytes]:
            place.mkdir()
            (place / "theirs").write_text("kept")
            return super().items()

    with pytest.raises(OSError, match="not empty"):
        write_folder(place, Overtaken({"a/mine": b"lost"}))
    assert [each.name for each in place.parent.iterdir()] == ["bank"]
    assert [each.name for each in place.iterdir()] == ["theirs"]
    write_folder(tmp_path / "free", {"a/mine": b"whole"})
    assert (tmp_path / "free" / "a" / "mine").read_bytes() == b"whole"


def test_a_folder_appears_filled_and_is_made_once(tmp_path: Path) -> None:
    folder = tmp_path / "kept"

    def make(beside: Path) -> None:
        (beside / "new").write_text("")
        assert not folder.exists()

    assert made_once(folder, make) == made_once(folder, lambda _: pytest.fail("made again")) == folder
    assert [path.name for path in folder.iterdir()] == ["new"] and {*tmp_path.iterdir()} == {folder, tmp_path / ".lock"}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755


def test_what_a_killed_process_left_is_removed_wherever_it_was_filled(tmp_path: Path) -> None:
    with unfinished(tmp_path) as left:
        kept = left.rename(tmp_path / f"{left.name}-of-the-killed")
    (kept / "half").write_text("")
    (tmp_path / "other").mkdir()
    with unfinished(tmp_path) as in_use:
        remove_unfinished(tmp_path)
        assert {*tmp_path.iterdir()} == {tmp_path / "other", in_use}
    assert [path.name for path in tmp_path.iterdir()] == ["other"]


def test_the_second_waits_until_the_first_is_done(tmp_path: Path) -> None:
    order: list[str] = []

    def second() -> None:
        with waiting_for(tmp_path / ".lock"):
            order.append("second")

    thread = threading.Thread(target=second)
    with waiting_for(tmp_path / ".lock"):
        thread.start()
        thread.join(0.1)
        order.append("first")
    thread.join(10)
    assert order == ["first", "second"]
