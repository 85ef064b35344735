"""The project is no bigger than size.toml allows."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

SIZE = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "size.py"))


def test_nothing_has_grown() -> None:
    found, most = SIZE["totals"](*SIZE["rooms"]()), SIZE["limits"]()
    assert most.keys() == found.keys()
    grown = {what: (found[what], most[what]) for what in found if found[what] > most[what]}
    assert not grown, "(now, allowed): delete something, or raise the total in size.toml and say why"


def test_only_code_counts() -> None:
    source = '"""Doc."""\n\n# comment\ndef f():\n    """Doc.\n    more"""\n    return (1,\n\n        2)  # end\n'
    assert SIZE["code_lines"](source) == 3


def test_totals_are_only_ever_lowered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "size.toml"
    page.write_text("# why\nfiles = 10\nsettings = 10\n# it bought X\n")
    monkeypatch.setitem(SIZE["lower"].__globals__, "TOTALS", page)
    SIZE["lower"]({"files": 12, "settings": 7})
    assert page.read_text() == "# why\nfiles = 10\nsettings = 7\n# it bought X\n"
