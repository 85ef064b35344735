"""JSON Lines of files that others may have written."""

from __future__ import annotations

import pytest

from skill_ttrl.errors import DataError
from skill_ttrl.storage.jsonl import MOST_NOTES, leaving_out


def test_of_many_damaged_lines_the_first_are_named() -> None:
    notes = list[str]()
    for line in range(50):
        with leaving_out(notes):
            raise DataError(f"rows.jsonl:{line}: no JSON.")
    assert notes[0] == "rows.jsonl:0: no JSON. It was left out." and notes[MOST_NOTES:] == ["More lines were left out."]
    with pytest.raises(DataError), leaving_out(None):
        raise DataError("no JSON")
