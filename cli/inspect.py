"""`skillttrl inspect`: the content of any path, or the results of several compared."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from skill_ttrl.cli.display import inspection_view, show, text_table, transcript_view
from skill_ttrl.cli.options import AsJson, Full
from skill_ttrl.errors import ConfigError
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
Rows = Annotated[int, typer.Option("--rows", min=1, help="Show at most this many rows of a table.")]
Step = Annotated[int | None, typer.Option(help="Of a run: this step's figures, votes and rollouts.")]
OneTask = Annotated[
    str | None,
    typer.Option("--task", metavar="ID", help="Of a run: how the votes on a task changed, and its last attempts."),
]
Episode = Annotated[
    str | None, typer.Option(metavar="ID", help="Of a run: the rollout with this id, such as `rl:12:TASK:3`, to read.")
]
Row = Annotated[int | None, typer.Option(help="Of a .jsonl file: this line to read, from 1, or from the end: -1.")]


def inspect(
    paths: Targets,
    step: Step = None,
    task: OneTask = None,
    episode: Episode = None,
    row: Row = None,
    rows: Rows = 10,
    full: Full = False,
    as_json: AsJson = False,
) -> None:
    """Show the content of any path: a run, a checkpoint, a skill bank, a file. Compare several.

    A comparison is paired over the tasks that both were evaluated on.

    Example: `skillttrl inspect runs/quickstart`
    """
    from skill_ttrl.commands.reports import compare, rollouts
    from skill_ttrl.commands.reports.inspect import inspect as look

    asked = {"--step": step, "--task": task, "--episode": episode, "--row": row}
    given = [name for name, value in asked.items() if value is not None]
    if given and len(given) + len(paths) > 2:
        raise ConfigError(f"{given[0]} looks at one path, and alone; found {' '.join([*map(str, paths), *given])}.")
    path, wanted = paths[0], episode if row is None else row
    if len(paths) > 1:
        show(compare.compare(paths), as_json, lambda found: Group(*map(_comparison, found)))
    elif wanted is not None:
        read = rollouts.read_transcript(path, wanted, full=full)
        show(read.record if as_json else read, as_json, transcript_view)
    else:
        if step is not None:
            found = rollouts.step_inspection(path, step, limit=rows)
        else:
            found = look(path, limit=rows) if task is None else rollouts.task_inspection(path, task, limit=rows)
        show(found, as_json, partial(inspection_view, full=full))


def _comparison(found: Comparison) -> RenderableType:
    from skill_ttrl.commands.reports.compare import FIGURES
    from skill_ttrl.statistics import PAIRED_TEST

    rows = [(FIGURES[name], *change.cells()) for name, change in found.figures.items()]
    tasks = max(change.tasks for change in found.figures.values())
    title = f"{found.other} − {found.one}: {tasks} tasks, paired by task, {PAIRED_TEST}"
    table = text_table(title, ("metric", "first", "second", "difference", "verdict"), rows)
    return Group(table, *(Text(escape_terminal(note)) for note in [*found.in_words(), *found.notes]))
