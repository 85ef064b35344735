"""Tables at 80 columns: no name and no id is broken into lines, and nothing in a text is markup."""

from __future__ import annotations

import io
from collections.abc import Sequence

import pytest
from rich.console import Console

from skill_ttrl.cli.display.output import text_table

IDS = ["pick_and_place_simple-Mug-None-Desk-308/trial_T20190908_125200_737896", "webshop-goal-000000017"]


def shown(width: int, title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    out = io.StringIO()
    Console(file=out, width=width).print(text_table(title, columns, rows))
    return out.getvalue()


@pytest.mark.parametrize("width", [80, 60, 200])
def test_no_id_is_broken_into_lines(width: int) -> None:
    words = "several words that can wrap wherever there is a space between two of them"
    out = shown(width, "", ("task", "outcome", "text", "again"), [(name, "won", words, name) for name in IDS])
    assert max(map(len, out.splitlines())) <= width
    lines = [line for line in out.splitlines() if "won" in line]
    assert len(lines) == 2 and lines[0].count("pick") == 2 and lines[1].count("webshop") == 2


def test_what_fits_is_as_it_is() -> None:
    assert IDS[0] in shown(200, "title", ("task",), [(IDS[0],)])
    assert "[bold]" in shown(80, "[bold]", ("a",), [("[red]x[/red]",)])
