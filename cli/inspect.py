"""`skillttrl inspect`: the content of any path."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from skill_ttrl.cli.display.output import show
from skill_ttrl.cli.display.tables import inspection_view
from skill_ttrl.cli.options import AsJson, Full
from skill_ttrl.cli.runs import compare

Targets = Annotated[
    list[Path],
    typer.Argument(
        metavar="PATH [PATH ...]",
        help="A run, an optimization, a checkpoint, stored samples, a skill bank, skills in any format, a file of trajectories or votes, a "
        "config, or a folder of runs. Several runs, folders of `train --seeds` or of `evaluate --output` are compared with the first.",
    ),
]
Rows = Annotated[int, typer.Option("--rows", min=1, help="Most rows to show of a long file.")]


def inspect(paths: Targets, rows: Rows = 10, full: Full = False, as_json: AsJson = False) -> None:
    """Show the content of any path: a run, a checkpoint, a skill bank, a file. Compare several.

    A comparison is paired over tasks that both were evaluated on, else of two means.

    Example: `skillttrl inspect runs/quickstart`
    """
    from skill_ttrl.stages.inspecting.inspect import inspect as look

    if len(paths) > 1:
        compare(paths, as_json=as_json)
    else:
        show(look(paths[0], limit=rows), as_json, partial(inspection_view, full=full))
