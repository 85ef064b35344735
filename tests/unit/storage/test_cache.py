"""Folders that are there whole or not at all; the stores and games that rest on them are tried in their own tests."""

from __future__ import annotations

import stat
import threading
from pathlib import Path

import pytest

from skill_ttrl.storage.files import digest_of, made_whole, remove_unfinished, unfinished, waiting_for


def test_a_folder_appears_filled_and_takes_the_place_of_another(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    folder.mkdir()
    (folder / "old").write_text("")
    with made_whole(folder) as beside:
        (beside / "new").write_text("")
        assert [path.name for path in folder.iterdir()] == ["old"]
    assert [path.name for path in folder.iterdir()] == ["new"] and list(tmp_path.iterdir()) == [folder]
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


def test_a_digest_changes_with_any_file_and_misses_none(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).write_text(name)
    before = digest_of([tmp_path / "one", tmp_path / "two"])
    (tmp_path / "two").write_text("other")
    assert len(before) == 16 and digest_of([tmp_path / "one", tmp_path / "two"]) != before
    with pytest.raises(FileNotFoundError):
        digest_of([tmp_path / "one", tmp_path / "gone"])
