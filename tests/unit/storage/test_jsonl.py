"""JSON Lines of files that others may have written."""

from __future__ import annotations

from pathlib import Path

import pytest

from skill_ttrl.errors import DataError
from skill_ttrl.storage.jsonl import MOST_NOTES, leaving_out, read_jsonl


def test_of_many_damaged_lines_the_first_are_named(tmp_path: Path) -> None:
    notes = list[str]()
    (tmp_path / "rows.jsonl").write_text("[]\n" * 50)
    assert not read_jsonl(tmp_path / "rows.jsonl", notes)
    assert "rows.jsonl:1 is damaged" in notes[0] and notes[MOST_NOTES:] == ["More lines were left out."]
    notes.clear()
    for line in range(50):
        with leaving_out(notes):
            raise DataError(f"rows.jsonl:{line}: no JSON.")
    assert notes[0] == "rows.jsonl:0: no JSON. It was left out." and notes[MOST_NOTES:] == ["More lines were left out."]
    with pytest.raises(DataError), leaving_out(None):
        raise DataError("no JSON")
