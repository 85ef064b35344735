"""`skillttrl inspect`: the content of any path, or the results of several compared."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from skill_ttrl.cli.display import inspection_view, show, text_table
from skill_ttrl.cli.options import AsJson, Full
from skill_ttrl.sanitize import escape_terminal

if TYPE_CHECKING:
    from skill_ttrl.commands.reports.compare import Comparison

Targets = Annotated[
    list[Path],
    typer.Argument(
        metavar="PATH [PATH ...]",
        help="A run, an optimization, a checkpoint, stored samples, a skill bank, skills in any format, a file of trajectories or votes, "
        "or a folder of runs. Several runs, folders of `train --seeds` or of `evaluate --output` are compared with the first.",
    ),
]
Rows = Annotated[int, typer.Option("--rows", min=1, help="Show at most this many rows of a file.")]


def inspect(paths: Targets, rows: Rows = 10, full: Full = False, as_json: AsJson = False) -> None:
    """Show the content of any path: a run, a checkpoint, a skill bank, a file. Compare several.

    A comparison is paired over the tasks that both were evaluated on.

    Example: `skillttrl inspect runs/quickstart`
    """
    from skill_ttrl.commands.reports.compare import compare
    from skill_ttrl.commands.reports.inspect import inspect as look

    if len(paths) == 1:
        show(look(paths[0], limit=rows), as_json, partial(inspection_view, full=full))
    else:
        show(compare(paths), as_json, lambda found: Group(*map(_comparison, found)))


def _comparison(found: Comparison) -> RenderableType:
    from skill_ttrl.commands.reports.compare import FIGURES
    from skill_ttrl.commands.reports.summary_text import short, with_interval
    from skill_ttrl.statistics import PAIRED_TEST, verdict

    rows, tasks = [], 0
    for name, of in found.figures.items():
        tasks, change = of.tasks, with_interval(of.difference, of.interval, "+")
        rows.append((FIGURES[name], short(of.one), short(of.other), change, verdict(of.interval)))
    title = f"{found.other} − {found.one}: {tasks} tasks, paired by task, {PAIRED_TEST}"
    table = text_table(title, ("metric", "first", "second", "difference", "verdict"), rows)
    return Group(table, *(Text(escape_terminal(note)) for note in [*found.in_words(), *found.notes]))
