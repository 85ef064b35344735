"""`skillttrl inspect`: what a path holds, whatever it is."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from skill_ttrl.cli.display.loss_view import loss_view
from skill_ttrl.cli.display.output import show
from skill_ttrl.cli.display.tables import inspection_view
from skill_ttrl.cli.options import AsJson
from skill_ttrl.cli.skills import show_diff
from skill_ttrl.errors import ConfigError

Target = Annotated[
    Path | None,
    typer.Argument(
        help="A run, an optimisation, a checkpoint, kept samples, a skill bank, skills in any format, a trajectories or votes file, or a "
        "config."
    ),
]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, help="Rows to show of a file with many.")]
Search = Annotated[str | None, typer.Option(help="A bank's skills that this query finds, with scores.")]
Mode = Annotated[
    str | None, typer.Option(help="With --search: `embedding`, `keyword` or `hybrid`. Default: the bank's.")
]
TopK = Annotated[int | None, typer.Option(min=1, help="With --search: skills to find.")]
History = Annotated[bool, typer.Option("--history", help="A bank's newest updates.")]
Diff = Annotated[
    tuple[str, str] | None,
    typer.Option(
        metavar="A B",
        help="What two versions of a bank differ in; without PATH: two banks, runs that have one, or files of skills.",
    ),
]
Stopping = Annotated[
    bool,
    typer.Option("--stopping", help="Where each label-free rule would have ended a run, and what that is worth."),
]
Loss = Annotated[bool, typer.Option("--loss", help="Which samples carried the gradient of a run's step, and why.")]
Step = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="As --loss, of this step (0: the first); of an optimisation: its edits and the document's diff (1: the first).",
    ),
]
Page = Annotated[
    Path | None,
    typer.Option(
        "--html",
        metavar="FILE",
        help="Write the page of a run or an optimisation here: one HTML file without scripts. The run may still go on.",
    ),
]


def inspect(
    path: Target = None,
    limit: Limit = 10,
    search: Search = None,
    mode: Mode = None,
    top_k: TopK = None,
    history: History = False,
    diff: Diff = None,
    stopping: Stopping = False,
    loss: Loss = False,
    step: Step = None,
    html: Page = None,
    as_json: AsJson = False,
) -> None:
    """Show what a path holds, whatever it is."""
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
            "--search, --history, --diff, --stopping, --loss, --step and --html each show something else: give one of them."
        )
    if search is None and (mode or top_k):
        raise ConfigError("--mode and --top-k say how to search: give --search with them.")
    if diff is not None:
        show_diff(path, *diff, as_json=as_json)
        return
    if path is None:
        raise ConfigError("Say what to look at: skillttrl inspect PATH. Only --diff A B with two banks needs none.")
    if html is not None:
        show(
            {"page": str(write_page(path, html))},
            as_json,
            lines=lambda found: [f"Open it in any browser: {found['page']}"],
        )
        return
    if loss:
        show(inspect_loss(path, step), as_json, partial(loss_view, limit=limit))
        return
    if of_document and step is not None:
        found = step_inspection(path, step)
    elif search is not None:
        found = skills.search_bank(path, search, mode=mode, top_k=top_k)
    elif stopping:
        found = inspect_stopping(path)
    else:
        found = skills.bank_history(path, limit=limit) if history else look(path, limit=limit)
    show(found, as_json, inspection_view)
