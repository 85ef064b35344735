"""`skillttrl runs list` and `show`, `skillttrl compare` and `train --seeds`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from skill_ttrl.cli.display.fitted import FittedTable
from skill_ttrl.cli.display.output import print_json, say, show
from skill_ttrl.cli.display.tables import inspection_view
from skill_ttrl.cli.display.views import RunView, number, signed
from skill_ttrl.cli.options import AsJson, Full
from skill_ttrl.errors import ConfigError

if TYPE_CHECKING:
    from skill_ttrl.config import SkillTTRLConfig
    from skill_ttrl.stages.reports.run_list import ListedRun

EVERYTHING = "Everything is in {0}. All metrics: skillttrl inspect {0} --full"

runs_app = typer.Typer(rich_markup_mode="markdown", help="Runs: list them, show one.", no_args_is_help=True)


@runs_app.command("list")
def runs_list(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of the runs.")] = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """List the runs in a folder and one level below it, with their results.

    Example: `skillttrl runs list runs`
    """
    from skill_ttrl.stages.reports.run_list import list_runs

    def table(found: Sequence[ListedRun]) -> FittedTable:
        rows = []
        for each in found:
            change = each.after - each.before if each.after is not None and each.before is not None else None
            state = "damaged" if each.fault else "yes" if each.ended else "no"
            reached = f"{number(each.before)} → {number(each.after)}"
            path = each.path.removeprefix(f"{folder}/")
            rows.append((path, each.seed, "+".join(each.phases), state, reached, signed(change, each.change)))
        return FittedTable(f"Runs in {folder}", ("run", "seed", "phases", "ended", "avg@k", "change"), rows)

    found = list_runs(folder)
    show(found, as_json, table, [f"{each.path}: {each.fault}" for each in found if each.fault])


@runs_app.command("show")
def runs_show(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of the run.")],
    full: Full = False,
    as_json: AsJson = False,
) -> None:
    """Show a run: its config in short, its state, and its results before and after the training.

    Example: `skillttrl runs show runs/quickstart`
    """
    from skill_ttrl.errors import RunFolderError
    from skill_ttrl.runs.folder import RunFolder
    from skill_ttrl.stages.inspecting.inspect import inspect

    if not RunFolder.exists(run):
        raise RunFolderError(
            f"There is no run at {run}. List yours with: skillttrl runs list. Other files: skillttrl inspect {run}"
        )
    show(inspect(run), as_json, partial(inspection_view, full=full))


def compare(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="A B [C ...]",
            help="Runs, folders of `train --seeds`, or folders of `evaluate --output`. Each is compared with the first.",
        ),
    ],
    confidence: Annotated[float, typer.Option(help="Confidence level of the intervals, in (0, 1).")] = 0.95,
    as_json: AsJson = False,
) -> None:
    """Compare the results of policies: paired over tasks that both were evaluated on, else as two means, with a note.

    Example: `skillttrl compare runs/baseline runs/mine`
    """
    from skill_ttrl.stages.reports.compare import FIGURES, measured
    from skill_ttrl.stages.reports.compare import compare as differ
    from skill_ttrl.statistics import PAIRED_TEST, verdict

    if not 0 < confidence < 1:
        raise ConfigError(f"--confidence lies between 0 and 1, found {confidence}.")
    found = differ(paths, confidence=confidence)
    if as_json:
        print_json(found)
        return
    samples = measured(paths[0]).samples
    screen = Console()
    for each in found:
        rows = [
            (
                FIGURES[name].format(samples),
                number(of.one),
                number(of.other),
                signed(of.difference, of.interval),
                verdict(of.interval),
            )
            for name, of in each.figures.items()
            if not (samples == 1 and name == "majority" and "accuracy" in each.figures)  # the same as avg@1
        ]
        how = f"paired by task, {PAIRED_TEST}" if each.paired else "not paired, Newcombe's interval"
        tasks = max(change.tasks[0] for change in each.figures.values())
        title = f"{each.other} − {each.one}: {tasks} tasks, {how}"
        screen.print(FittedTable(title, ("metric", "first", "second", "difference", "verdict"), rows))
        say(*each.notes, screen=screen, soft_wrap=False)


def seeds_of(text: str) -> list[int]:
    """Parse the value of `--seeds`: `0,1,2`, also with spaces.

    Raises:
        ConfigError: one is not a whole number of 0 or more.
    """
    words = text.replace(",", " ").split()
    if not words or not all(word.isascii() and word.isdigit() for word in words):
        raise ConfigError(f"--seeds are whole numbers separated by commas, such as 0,1,2; found {text!r}.")
    return [int(word) for word in words]


def train_seeds(
    config: SkillTTRLConfig,
    seeds: Sequence[int],
    folder: Path,
    resume: str | None,
    text: str,
    *,
    as_json: bool,
    full: bool = False,
) -> None:
    """Run every seed, each with its own view, and print their results together."""
    from skill_ttrl.stages.inspecting.inspect_results import seeds_inspection
    from skill_ttrl.stages.seeds import run_seeds

    screen = Console(stderr=as_json)
    with ExitStack() as shown:

        def view_of(run: Path) -> RunView:
            shown.close()
            return shown.enter_context(RunView(screen, f"{config.name} → {run}"))

        found = run_seeds(config, folder, seeds, resume=resume, progress=view_of, source=text)  # type: ignore[arg-type]
    if as_json:
        print_json(found)
        return
    screen.print(inspection_view(seeds_inspection(found), full=full))
    say(EVERYTHING.format(folder), screen=screen)
