"""`skillttrl optimize`: optimize a skill document while all weights stay frozen."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console, RenderableType

from skill_ttrl.cli import options
from skill_ttrl.cli.display import RunView, prints_aside, show, text_table

if TYPE_CHECKING:
    from skill_ttrl.commands.optimize_results import OptimizeSummary, Score

FILES = "Results: {0}; open {0}/report.html. The document to use: {0}/best_skill.md. Steps: skillttrl inspect {0}"

Config = Annotated[
    str | None,
    typer.Argument(
        metavar="CONFIG",
        help=f"{options.CONFIG_HELP} It names the tasks, the section `optimize`, and for a plain model its prompts and lengths. With a run as "
        "--policy it can be left out; its keys override the run's.",
    ),
]
Policy = Annotated[
    str | None, options.policy_option(f"The frozen policy: {options.POLICIES}. Default: the one that the config names.")
]
Document = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Initial document, a Markdown file. Default: the config's, else an empty one."),
]
Output = Annotated[
    Path | None, typer.Option("--output", "-o", help="Folder of the optimization. Default: runs/NAME-optimize.")
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Check everything that can be checked before it starts, and show its sizes.")
]
Overrides = Annotated[list[str] | None, options.set_option("Override one config key, e.g. optimize.epochs=2.")]


def optimize(
    config: Config = None,
    policy: Policy = None,
    agent: options.Program = None,
    document: Document = None,
    overrides: Overrides = None,
    seed: options.Seed = None,
    output: Output = None,
    resume: options.Resume = "auto",
    dry_run: DryRun = False,
    as_json: options.AsJson = False,
) -> None:
    """Optimize a skill document for a frozen policy: roll out, reflect, merge, select edits, and accept those that raise a held-out score.

    An interrupted optimization is continued by the same command; finished calls and rollouts are taken from its journal and cost nothing.

    Example: `skillttrl optimize quickstart_optimize --policy openai:gpt-4o-mini --dry-run`
    """
    from skill_ttrl.commands.optimize import check_start, optimize_run, prepare
    from skill_ttrl.commands.optimize_results import summary_lines

    if policy is not None:
        options.check_model(policy, "`skillttrl optimize`")
    settings = options.with_short(overrides, {"program.argv": agent, "seed": seed})
    given: dict[str, Any] = {"policy": policy, "document": document, "overrides": settings}
    if dry_run:
        with prints_aside():
            checked = check_start(prepare(config, **given), output, resume=resume)
        show(checked, as_json, checked_view)
        return
    with RunView(Console(stderr=True), f"optimize {config or policy or ''}") as view:
        prepared = prepare(config, **given, progress=view)
        folder = prepared.place(output)
        found = optimize_run(prepared, output=folder, resume=resume, progress=view)
    show(found, as_json, summary_table, lambda each: [*summary_lines(each), FILES.format(folder)])


def summary_table(found: OptimizeSummary) -> RenderableType:
    """Scores of the first and the best document."""
    from skill_ttrl.commands.reports.summary_text import with_interval

    def score(of: Score | None) -> str | None:
        return None if of is None else with_interval(of.hard, (of.low, of.high))

    first, best = score(found.selection_first), with_interval(found.selection_best)
    rows = [("selection (decides)", first, best, str(found.items["selection"]))]
    if found.test_first is not None:
        rows.append(("test", score(found.test_first), score(found.test_best), str(found.test_first.items)))
    title = f"{found.name}: a document for {found.policy} in {found.environment}, {found.optimizer}, seed {found.seed}"
    return text_table(title, ("success", "first", "best", "items"), rows)


def checked_view(found: Mapping[str, Any]) -> RenderableType:
    """Facts known before an optimization starts."""
    rows = [(name.replace("_", " "), value) for name, value in found.items() if name not in ("name", "items")]
    rows += [(f"{role} tasks", count) for role, count in found["items"].items()]
    return text_table(f"{found['name']}: checked, nothing was sent", ("", "value"), rows)
