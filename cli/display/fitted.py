"""A table of plain texts that fits the terminal without breaking a word or an id."""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from typing import Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from skill_ttrl.sanitize import escape_terminal

_INTERVAL = re.compile(r" \[([-+]?[\d.]+), ([-+]?[\d.]+)\]")
_NUMBER = re.compile(r"[-+\d.,%e\[\]\s]*")
NARROWEST = 5
"""Least width of a column, in cells of the terminal: `ab…yz`."""
WHOLE_NAME = 36
"""Words of the first column up to this width are never cut: names that people type."""


class FittedTable:
    """Texts in columns. Where they need more room than there is, intervals move to a line of their own, texts wrap between words,
    and a word that is still too long loses its middle (`--json` has it whole). Numbers and the names in the first column stay whole: where these need
    more room than there is, the last columns are left out, which is said. Nothing in the title or in a cell is read as markup, and no control character reaches
    the terminal.
    """

    def __init__(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        self._title = title
        self._columns = [escape_terminal(column) for column in columns]
        self._rows = [["-" if cell is None else escape_terminal(str(cell)) for cell in row] for row in rows]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from copy.copy(self)._render(options)  # a table may be shown again, at another width

    def _render(self, options: ConsoleOptions) -> RenderResult:
        if _room(options.max_width, len(self._columns)) < sum(self._natural()):
            self._rows = [[_INTERVAL.sub(r"\n[\1,\2]", cell) for cell in row] for row in self._rows]
        hidden = self._leave_out_columns(options.max_width)
        widths = self._widths(options.max_width)
        table = Table(title=Text(escape_terminal(self._title), "table.title") if self._title else None)
        for column, width in zip(self._columns, widths, strict=True):
            table.add_column(Text(_cut_words(column, width), "table.header"), width=width)
        for row in self._rows:
            table.add_row(*(Text(_cut_words(cell, width)) for cell, width in zip(row, widths, strict=True)))
        yield table
        if hidden:
            yield Text(f"Columns without room here: {', '.join(hidden)} (a wider terminal, or --json).", "dim")

    def _leave_out_columns(self, most: int) -> list[str]:
        """Leave out the last columns until the others have the least room that they need; gives their names."""
        hidden: list[str] = []
        while len(self._columns) > 2 and sum(self._least()) > _room(most, len(self._columns)):
            hidden.insert(0, self._columns[-1])
            self._columns, self._rows = self._columns[:-1], [row[:-1] for row in self._rows]
        return hidden

    def _texts(self) -> list[list[str]]:
        return [[header, *(row[place] for row in self._rows)] for place, header in enumerate(self._columns)]

    def _natural(self) -> list[int]:
        """Widths in which no line wraps."""
        return [max(cell_len(line) for text in texts for line in text.split("\n")) for texts in self._texts()]

    def _words(self) -> list[int]:
        """Widths in which no word is cut."""
        return [max((cell_len(word) for text in texts for word in text.split()), default=1) for texts in self._texts()]

    def _least(self) -> list[int]:
        """Widths in which no number is cut, and no name in the first column."""
        least = []
        for place, (texts, words) in enumerate(zip(self._texts(), self._words(), strict=True)):
            numbers = max(
                (cell_len(word) for text in texts[1:] if _NUMBER.fullmatch(text) for word in text.split()), default=0
            )
            name = words if place == 0 and words <= WHOLE_NAME else 0
            least.append(max(min(words, NARROWEST), numbers, name))
        return least

    def _widths(self, most: int) -> list[int]:
        natural, room = self._natural(), _room(most, len(self._columns))
        if sum(natural) <= room:
            return natural
        widths, least = self._words(), self._least()
        if sum(least) > room:
            least = [1] * len(least)
        while sum(widths) > room and widths != least:
            spare = [width if width > low else 0 for width, low in zip(widths, least, strict=True)]
            widths[spare.index(max(spare))] -= 1
        for _ in range(room - sum(widths)):  # what is left goes to those that lack most
            lacking = [wanted - width for wanted, width in zip(natural, widths, strict=True)]
            widths[lacking.index(max(lacking))] += 1
        return widths


def _room(most: int, columns: int) -> int:
    """Cells of a terminal of this width that are left for texts."""
    return most - 3 * columns - 1


def _cut_words(text: str, width: int) -> str:
    return re.sub(r"\S+", lambda word: cut_middle(word.group(), width), text)


def cut_middle(word: str, width: int) -> str:
    """`word` in at most `width` cells: what is too much of its middle is an ellipsis, so that both ends tell it apart."""
    if cell_len(word) <= width:
        return word
    left, right = (width - 1) - (width - 1) // 2, (width - 1) // 2
    while cell_len(word[:left]) + cell_len(word[len(word) - right :]) > width - 1:
        left, right = (left - 1, right) if left >= right else (left, right - 1)
    return f"{word[:left]}…{word[len(word) - right :]}"
