"""Folders that are written whole replace nothing that another process has written meanwhile."""

from __future__ import annotations

from collections import UserDict
from collections.abc import ItemsView
from pathlib import Path

import pytest

from skill_ttrl.storage.files import write_folder


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
