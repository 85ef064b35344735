"""`skillttrl optimize`: optimize a skill document while all weights stay frozen, or estimate the cost."""

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
    refuse,
    set_option,
    with_seed,
)

if TYPE_CHECKING:
    from skill_ttrl.stages.optimizing.plan import Span
    from skill_ttrl.stages.optimizing.plan_tokens import Plan
    from skill_ttrl.stages.optimizing.summary import OptimizeSummary, Score

FILES = "Everything is in {0}. The document to use: {0}/best_skill.md. Its page: {0}/report.html. Its steps: skillttrl inspect {0}"

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
    typer.Option("--dry-run", help="Estimate the least and most rollouts, calls and tokens, and do nothing."),
]
Success = Annotated[
    float | None,
    typer.Option(
        min=0.0,
        max=1.0,
        help="With --dry-run: assume that this share of the rollouts succeeds and that every answer is usable, for one estimate instead "
        "of a range.",
    ),
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
    success: Success = None,
    as_json: AsJson = False,
) -> None:
    """Optimize a skill document for a frozen policy: roll out, reflect, merge, select edits, and accept those that raise a held-out score.

    An interrupted optimization is continued by the same command; finished calls and rollouts are taken from its journal and cost nothing.

    Example: `skillttrl optimize quickstart_optimize --policy openai:gpt-4o-mini --dry-run`
    """
    from skill_ttrl.stages.optimize import optimize_run, plan_run, prepare

    if not dry_run:
        refuse({"--success": success}, "needs --dry-run")
    if policy is not None:
        check_model(policy, "`skillttrl optimize`")
    options: dict[str, Any] = {"policy": policy, "document": document, "overrides": with_seed(overrides, seed)}
    if dry_run:
        with prints_aside():
            planned = plan_run(prepare(config, **options), success=success)
        show(planned, as_json, plan_view)
        return
    screen = Console(stderr=True)
    title = f"optimize {config or policy or ''}"
    with prints_aside(), RunView(screen, title, loop=False, parts=_parts()) as view:
        prepared = prepare(config, **options, progress=view)
        folder = output or prepared.folder
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


def plan_view(found: Plan) -> RenderableType:
    """Rollouts and calls of the steps and in all, tokens, cost and assumptions."""
    columns = ("work", "a step", "in all", "prompt tokens", "answer tokens")
    rows = [
        (
            f"{each.kind}: {each.stage}",
            _span(each.a_step),
            _span(each.total),
            _span(each.prompt_tokens),
            _span(each.answer_tokens),
        )
        for each in found.work
    ]
    title = f"{found.name}: {found.steps} steps of {found.epochs} epochs"
    cost = [Text(f"Cost: {_span(found.cost)} by the prices of the config.")] if found.cost is not None else []
    rows.append(("in all: rollouts", "", _span(found.rollouts), "", ""))
    rows.append(("in all: calls", "", _span(found.calls), "", ""))
    notes = [Text(f"  {note}", "dim") for note in found.assumptions]
    return Group(FittedTable(title, columns, rows), *cost, *notes)


def _score(score: Score | None) -> str:
    return "-" if score is None else f"{number(score.hard)}{interval((score.low, score.high))}"


def _span(span: Span | None) -> str:
    if span is None:
        return "-"

    def shown(value: float) -> str:
        return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"

    return shown(span.least) if span.least == span.most else f"{shown(span.least)} to {shown(span.most)}"


def _parts() -> tuple[str, ...]:
    from skill_ttrl.stages.optimizing.watch import STAGES

    return STAGES
