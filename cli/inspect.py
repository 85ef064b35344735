"""`skillttrl inspect`: the content of any path."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from skill_ttrl.cli.display.loss_view import loss_view
from skill_ttrl.cli.display.output import show
from skill_ttrl.cli.display.tables import inspection_view
from skill_ttrl.cli.options import AsJson, Full, refuse
from skill_ttrl.cli.runs import compare
from skill_ttrl.errors import ConfigError

Targets = Annotated[
    list[Path],
    typer.Argument(
        metavar="PATH [PATH ...]",
        help="A run, an optimization, a checkpoint, stored samples, a skill bank, skills in any format, a file of trajectories or votes, a "
        "config, or a folder of runs. Several runs, folders of `train --seeds` or of `evaluate --output` are compared with the first.",
    ),
]
Rows = Annotated[int, typer.Option("--rows", min=1, help="Most rows to show of a long file.")]
Stopping = Annotated[
    bool,
    typer.Option(
        "--stopping", help="Show where each label-free stopping rule would have ended a run, and its gain or loss."
    ),
]
Loss = Annotated[
    bool, typer.Option("--loss", help="Show which samples contributed most to the gradient of a run's step, and why.")
]
Step = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="Step for --loss (0: the first); of an optimization: its edits and the document's diff (1: the first).",
    ),
]
Page = Annotated[
    Path | None,
    typer.Option(
        "--html",
        metavar="FILE",
        help="Write a report of a run or an optimization: one HTML file without scripts. The run may still be going on.",
    ),
]


def inspect(
    paths: Targets,
    rows: Rows = 10,
    stopping: Stopping = False,
    loss: Loss = False,
    step: Step = None,
    html: Page = None,
    full: Full = False,
    as_json: AsJson = False,
) -> None:
    """Show the content of any path: a run, a checkpoint, a skill bank, a file. Compare several.

    A comparison is paired over tasks that both were evaluated on, else of two means.

    Example: `skillttrl inspect runs/quickstart`
    """
    from skill_ttrl.stages.inspecting.inspect import inspect as look
    from skill_ttrl.stages.inspecting.inspect_loss import inspect_loss
    from skill_ttrl.stages.inspecting.inspect_optimize import step_inspection
    from skill_ttrl.stages.inspecting.inspect_page import write_page
    from skill_ttrl.stages.inspecting.stopping import inspect_stopping
    from skill_ttrl.stages.optimizing.run_folder import is_optimization

    path = paths[0]
    of_document = step is not None and not loss and is_optimization(path)
    loss = loss or (step is not None and not of_document)
    if stopping + loss + of_document + (html is not None) > 1:
        raise ConfigError("--stopping, --loss, --step and --html exclude each other: give one of them.")
    if len(paths) > 1:
        refuse({"--stopping": stopping, "--loss": loss, "--step": step, "--html": html}, "needs a single path")
        compare(paths, as_json=as_json)
    elif html is not None:
        page = str(write_page(path, html))
        show({"page": page}, as_json, lines=[f"Open it in a browser: {page}"])
    elif loss:
        show(inspect_loss(path, step), as_json, partial(loss_view, limit=rows))
    else:
        if of_document and step is not None:
            found = step_inspection(path, step)
        else:
            found = inspect_stopping(path) if stopping else look(path, limit=rows)
        show(found, as_json, partial(inspection_view, full=full))
