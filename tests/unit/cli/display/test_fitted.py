"""Tables at 80 columns: no word and no id is broken."""

from __future__ import annotations

import io
from collections.abc import Sequence

import pytest
from rich.console import Console

from skill_ttrl.cli.display.output import FittedTable

IDS = ["pick_and_place_simple-Mug-None-Desk-308/trial_T20190908_125200_737896", "webshop-goal-000000017"]


def shown(width: int, title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    out = io.StringIO()
    Console(file=out, width=width).print(FittedTable(title, columns, rows))
    return out.getvalue()


@pytest.mark.parametrize("width", [80, 60, 200])
def test_no_id_is_broken_into_lines(width: int) -> None:
    rows = [
        (name, "won", 0.5, "several words that can wrap wherever there is a space between two of them", name)
        for name in IDS
    ]
    out = shown(width, "", ("task", "outcome", "reward", "text", "again"), rows)
    assert max(map(len, out.splitlines())) <= width
    lines = [line for line in out.splitlines() if "won" in line]
    assert len(lines) == 2 and lines[0].count("pick") == 2
    words = {word for line in out.splitlines() for word in line.replace("│", " ").replace("┃", " ").split()}
    known = {"won", "0.5", "task", "outcome", "reward", "text", "again", *str(rows[0][3]).split(), *IDS}
    assert all(word in known or "…" in word or set(word) <= set("┏┳┓┡╇┩└┴┘━─├┼┤") for word in words), words - known


def test_numbers_and_names_are_whole_and_columns_without_room_are_named() -> None:
    rows = [("sampling/importance_ratio/mean", "0.002766", "-2.11e-08", "8.21e+09", "0.123456", "a meaning in words")]
    out = shown(60, "", ("metric", "latest", "mean", "least", "most", "meaning"), rows)
    assert max(map(len, out.splitlines())) <= 60
    assert "sampling/importance_ratio/mean" in out and "0.002766" in out and "…" not in out
    assert "Columns without room here: " in out and "meaning (a wider terminal, or --json)." in " ".join(out.split())


def test_a_table_that_was_shown_in_little_room_is_whole_in_more() -> None:
    table, out = FittedTable("", ("metric", "first", "last"), [("m" * 30, "0.123456789", "0.987654321")]), io.StringIO()
    Console(file=io.StringIO(), width=50).print(table)
    Console(file=out, width=100).print(table)
    assert "0.987654321" in out.getvalue() and "Columns without room" not in out.getvalue()


def test_what_fits_is_as_it_is() -> None:
    assert IDS[0] in shown(200, "title", ("task",), [(IDS[0],)])
    assert "[bold]" in shown(80, "[bold]", ("a",), [("[red]x[/red]",)])
