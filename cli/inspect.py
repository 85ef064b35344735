"""`skillttrl inspect`: the content of any path."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from skill_ttrl.cli.display.loss_view import loss_view
from skill_ttrl.cli.display.output import show
from skill_ttrl.cli.display.tables import inspection_view
from skill_ttrl.cli.options import AsJson, Full
from skill_ttrl.cli.skill_views import show_diff
from skill_ttrl.errors import ConfigError

Target = Annotated[
    Path | None,
    typer.Argument(
        help="A run, an optimization, a checkpoint, stored samples, a skill bank, skills in any format, a file of trajectories or votes, a "
        "config, or a folder of runs."
    ),
]
Rows = Annotated[int, typer.Option("--rows", min=1, help="Most rows to show of a long file.")]
Search = Annotated[str | None, typer.Option(help="Search a bank, as `skillttrl skills search BANK QUERY`.")]
Mode = Annotated[
    str | None, typer.Option(help="With --search: `embedding`, `keyword` or `hybrid`. Default: the bank's.")
]
TopK = Annotated[int | None, typer.Option(min=1, help="With --search: number of skills to find.")]
History = Annotated[
    bool, typer.Option("--history", help="A bank's newest updates, as `skillttrl skills history BANK`.")
]
Diff = Annotated[
    tuple[str, str] | None,
    typer.Option(
        metavar="A B",
        help="Differences of two versions of a bank, or without PATH of two banks, as `skillttrl skills diff`.",
    ),
]
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
    path: Target = None,
    rows: Rows = 10,
    search: Search = None,
    mode: Mode = None,
    top_k: TopK = None,
    history: History = False,
    diff: Diff = None,
    stopping: Stopping = False,
    loss: Loss = False,
    step: Step = None,
    html: Page = None,
    full: Full = False,
    as_json: AsJson = False,
) -> None:
    """Show the content of any path: a run, a checkpoint, a skill bank, a file.

    Example: `skillttrl inspect runs/quickstart`
    """
    from skill_ttrl.stages.inspecting import inspect_bank as skills
    from skill_ttrl.stages.inspecting.inspect import inspect as look
    from skill_ttrl.stages.inspecting.inspect_loss import inspect_loss
    from skill_ttrl.stages.inspecting.inspect_optimize import step_inspection
    from skill_ttrl.stages.inspecting.inspect_page import write_page
    from skill_ttrl.stages.inspecting.stopping import inspect_stopping
    from skill_ttrl.stages.optimizing.run_folder import is_optimization

    of_document = step is not None and not loss and path is not None and is_optimization(path)
    loss = loss or (step is not None and not of_document)
    if (search is not None) + history + (diff is not None) + stopping + loss + of_document + (html is not None) > 1:
        raise ConfigError(
            "--search, --history, --diff, --stopping, --loss, --step and --html exclude each other: give one of them."
        )
    if search is None and (mode or top_k):
        raise ConfigError("--mode and --top-k configure a search: they need --search.")
    if diff is not None:
        show_diff(path, *diff, as_json=as_json)
        return
    if path is None:
        raise ConfigError("Name a path: skillttrl inspect PATH. Only --diff A B with two banks needs none.")
    if html is not None:
        show(
            {"page": str(write_page(path, html))},
            as_json,
            lines=lambda found: [f"Open it in a browser: {found['page']}"],
        )
        return
    if loss:
        show(inspect_loss(path, step), as_json, partial(loss_view, limit=rows))
        return
    if of_document and step is not None:
        found = step_inspection(path, step)
    elif search is not None:
        found = skills.search_bank(path, search, mode=mode, top_k=top_k)
    elif stopping:
        found = inspect_stopping(path)
    else:
        found = skills.bank_history(path, limit=rows) if history else look(path, limit=rows)
    show(found, as_json, partial(inspection_view, full=full))
