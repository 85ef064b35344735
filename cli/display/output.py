"""How every command prints its result: JSON alone on stdout, or a view and lines under it; and a table that fits the terminal."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, redirect_stdout
from dataclasses import asdict, is_dataclass
from typing import Any, TypeVar

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text

from skill_ttrl.sanitize import escape_json, escape_terminal

T = TypeVar("T")


def show(
    found: T,
    as_json: bool,
    view: Callable[[T], RenderableType] | None = None,
    lines: Iterable[str] | Callable[[T], Iterable[str]] = (),
    *,
    soft_wrap: bool = False,
) -> None:
    """Print a result: as JSON, or its view (`soft_wrap`: each line whole) and the lines that stand under it."""
    if as_json:
        print_json(found)
        return
    if view is not None:
        Console().print(view(found), soft_wrap=soft_wrap)
    say(*(lines(found) if callable(lines) else lines))


def say(*lines: str, screen: Console | None = None, style: str | None = None, soft_wrap: bool = True) -> None:
    """Print plain texts: nothing in them is markup or acts on the terminal, and with `soft_wrap` no path is broken into lines."""
    screen = screen or Console()
    for line in lines:
        screen.print(escape_terminal(line), style=style, markup=False, highlight=False, soft_wrap=soft_wrap)


def print_json(value: Any) -> None:
    """Print plain data or dataclasses, alone or in a list."""

    def plain(item: Any) -> Any:
        if is_dataclass(item) and not isinstance(item, type):
            return asdict(item)
        return [plain(each) for each in item] if isinstance(item, list | tuple) else item

    print(escape_json(json.dumps(plain(value), indent=2, ensure_ascii=False, default=str)))


def write_text(text: str) -> None:
    """Write a file's text to stdout as it is; to a terminal without characters that act on it."""
    sys.stdout.write(escape_terminal(text) if sys.stdout.isatty() else text)


def prints_aside() -> AbstractContextManager[object]:
    """Send what an environment or a scripted agent of the user's prints to stderr: stdout is for the result, which may be JSON."""
    return redirect_stdout(sys.stderr)


_INTERVAL = re.compile(r" \[([-+]?[\d.]+), ([-+]?[\d.]+)\]")
_NUMBER = re.compile(r"[-+\d.,%e\[\]\s]*")
NARROWEST = 5
"""Least width of a column, in cells of the terminal."""
WHOLE_NAME = 36
"""Words of the first column up to this width are never cut: names that people type."""


class FittedTable:
    """Texts in columns. Where they need more room than there is, intervals move to a line of their own, texts wrap between words, and
    a longer word is cut. Numbers and the names in the first column stay whole: where these need more room than there is, the last
    columns are left out, and a line below names them. Nothing is read as markup, and no control character reaches the terminal.
    """

    def __init__(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        self._title = Text(escape_terminal(title), "table.title") if title else None
        self._columns = [escape_terminal(column) for column in columns]
        self._rows = [["-" if cell is None else escape_terminal(str(cell)) for cell in row] for row in rows]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        rows, shown = self._rows, len(self._columns)
        fits = sum(self._widths(rows)) <= _room(options, shown)
        if not fits:
            rows = [[_INTERVAL.sub(r"\n[\1,\2]", cell) for cell in row] for row in rows]
        least = [_least(place, texts) for place, texts in enumerate(self._texts(rows))]
        while shown > 2 and sum(least[:shown]) > _room(options, shown):
            shown -= 1
        table = Table(title=self._title)
        for column, width, most in zip(self._columns[:shown], least, self._widths(rows), strict=False):
            header = Text(column, "table.header")
            # rich takes room from the widest columns first, also below their least width: then the table would be too wide
            table.add_column(header, min_width=None if fits else width, no_wrap=width == most, overflow="ellipsis")
        for row in rows:
            table.add_row(*map(Text, row[:shown]))
        yield table
        if hidden := ", ".join(self._columns[shown:]):
            yield Text(f"Columns without room here: {hidden} (a wider terminal, or --json).", "dim")

    def _widths(self, rows: Sequence[Sequence[str]]) -> list[int]:
        """Width of each column where nothing wraps."""
        return [max(cell_len(line) for text in texts for line in text.split("\n")) for texts in self._texts(rows)]

    def _texts(self, rows: Sequence[Sequence[str]]) -> list[list[str]]:
        return [[header, *(row[place] for row in rows)] for place, header in enumerate(self._columns)]


def _room(options: ConsoleOptions, columns: int) -> int:
    """Cells of the terminal that are left for texts."""
    return options.max_width - 3 * columns - 1


def _least(place: int, texts: Sequence[str]) -> int:
    """Width in which no number is cut, and no name in the first column."""
    words = max((cell_len(word) for text in texts for word in text.split()), default=1)
    numbers = [cell_len(word) for text in texts[1:] if _NUMBER.fullmatch(text) for word in text.split()]
    name = words if place == 0 and words <= WHOLE_NAME else 0
    return max(min(words, NARROWEST), name, *numbers, 0)
