"""How every command prints its result: JSON alone on stdout, or a view and lines under it; and a table."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, redirect_stdout
from dataclasses import asdict, is_dataclass
from typing import Any, TypeVar

from rich.cells import cell_len
from rich.console import Console, RenderableType
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


WHOLE_NAME = 36
"""Words of the first column up to this width, in cells of the terminal, are never cut: names that people type."""


def text_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Table:
    """Texts in columns. They wrap between words, and a longer word is cut; nothing in them is markup or acts on the terminal."""
    texts = [["-" if cell is None else escape_terminal(str(cell)) for cell in row] for row in rows]
    made = Table(title=Text(escape_terminal(title), "table.title") if title else None)
    names = [cell_len(word) for text in texts for word in text[0].split()] if columns else []
    for place, column in enumerate(columns):
        whole = max((width for width in names if width <= WHOLE_NAME), default=None) if place == 0 else None
        made.add_column(Text(escape_terminal(column), "table.header"), overflow="ellipsis", min_width=whole)
    for text in texts:
        made.add_row(*map(Text, text))
    return made
