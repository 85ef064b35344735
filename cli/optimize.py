"""`skillttrl optimize`: optimize a skill document while all weights stay frozen."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console, Group, RenderableType
from rich.text import Text

from skill_ttrl.cli.display.fitted import FittedTable
from skill_ttrl.cli.display.output import print_json, prints_aside, say, show
from skill_ttrl.cli.display.views import RunView, interval, number
from skill_ttrl.cli.options import (
    CONFIG_HELP,
    POLICIES,
    AsJson,
    Resume,
    check_model,
    policy_option,
    set_option,
    with_seed,
)

if TYPE_CHECKING:
    from skill_ttrl.stages.optimize import Checked
    from skill_ttrl.stages.optimizing.summary import OptimizeSummary, Score

FILES = "Results: {0}. The document to use: {0}/best_skill.md. Report: {0}/report.html. Steps: skillttrl inspect {0}"

Config = Annotated[
    str | None,
    typer.Argument(
        metavar="CONFIG",
        help=f"{CONFIG_HELP} It names the tasks, the section `optimize`, and for a plain model its prompts and lengths. With a run as "
        "--policy it can be left out; its keys override the run's.",
    ),
]
Policy = Annotated[str | None, policy_option(f"The frozen policy: {POLICIES}. Default: the one that the config names.")]
Document = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Initial document, a Markdown file. Default: the config's, else an empty one."),
]
Output = Annotated[
    Path | None, typer.Option("--output", "-o", help="Folder of the optimization. Default: runs/NAME-optimize.")
]
DryRun = Annotated[
    bool,
    typer.Option("--dry-run", help="Check everything that can be checked before it starts, and show its sizes."),
]
Overrides = Annotated[list[str] | None, set_option("Override one config key, e.g. optimize.epochs=2.")]
Seed = Annotated[int | None, typer.Option(min=0, help="Seed of every random choice. Default: the config's.")]


def optimize(
    config: Config = None,
    policy: Policy = None,
    document: Document = None,
    overrides: Overrides = None,
    seed: Seed = None,
    output: Output = None,
    resume: Resume = "auto",
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Optimize a skill document for a frozen policy: roll out, reflect, merge, select edits, and accept those that raise a held-out score.

    An interrupted optimization is continued by the same command; finished calls and rollouts are taken from its journal and cost nothing.

    Example: `skillttrl optimize quickstart_optimize --policy openai:gpt-4o-mini --dry-run`
    """
    from skill_ttrl.stages.optimize import check_start, optimize_run, prepare

    if policy is not None:
        check_model(policy, "`skillttrl optimize`")
    options: dict[str, Any] = {"policy": policy, "document": document, "overrides": with_seed(overrides, seed)}
    if dry_run:
        with prints_aside():
            checked = check_start(prepare(config, **options), output, resume=resume)  # type: ignore[arg-type]  # checked there
        show(checked, as_json, checked_view)
        return
    screen = Console(stderr=True)
    title = f"optimize {config or policy or ''}"
    with prints_aside(), RunView(screen, title) as view:
        prepared = prepare(config, **options, progress=view)
        folder = prepared.place(output)
        found = optimize_run(prepared, output=folder, resume=resume, progress=view)  # type: ignore[arg-type]  # checked there
    if as_json:
        print_json(found)
        return
    show_optimized(found, folder)


def show_optimized(found: OptimizeSummary, folder: Path) -> None:
    """Print the scores of the first and the best document, and what stands under them."""
    from skill_ttrl.stages.optimizing.summary import summary_lines

    Console().print(summary_table(found))
    say(*summary_lines(found), FILES.format(folder))


def summary_table(found: OptimizeSummary) -> FittedTable:
    """Scores of the first and the best document."""
    rows = [
        (
            "selection (decides)",
            _score(found.selection_first),
            number(found.selection_best),
            str(found.items["selection"]),
        )
    ]
    if found.test_first is not None:
        rows.append(("test", _score(found.test_first), _score(found.test_best), str(found.test_first.items)))
    title = f"{found.name}: a document for {found.policy} in {found.environment}, {found.optimizer}, seed {found.seed}"
    return FittedTable(title, ("success", "first", "best", "items"), rows)


def checked_view(found: Checked) -> RenderableType:
    """The sizes that are known before an optimization starts."""
    begins = "continues in" if found.continues else "would begin in"
    rows = [(f"{role} tasks", f"{count:,}") for role, count in found.items.items()]
    rows += [("epochs", str(found.epochs))]
    rows += (
        [] if found.steps is None else [("steps", f"{found.steps:,}"), ("training tasks a step", str(found.step_items))]
    )
    rows += [("tokens of the first document, about", f"{found.document_tokens:,}")]
    title = f"{found.name}: a document for {found.policy}, engine {found.engine}, optimizer {found.optimizer}"
    return Group(
        FittedTable(title, ("size", ""), rows), Text(f"Checked; nothing was sent. It {begins} {found.folder}.", "dim")
    )


def _score(score: Score | None) -> str:
    return "-" if score is None else f"{number(score.hard)}{interval((score.low, score.high))}"
