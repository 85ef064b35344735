"""`skillttrl runs list`, `skillttrl compare` and `train --seeds`: several runs at once."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from skill_ttrl.cli.display.output import print_json
from skill_ttrl.errors import ConfigError
from skill_ttrl.sanitize import escape_terminal

if TYPE_CHECKING:
    from skill_ttrl.config import SkillTTRLConfig

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on stdout, nothing else.")]

runs_app = typer.Typer(help="Runs that were made: list them.", no_args_is_help=True)


@runs_app.callback()
def _runs() -> None:
    """Runs that were made: list them."""


@runs_app.command("list")
def runs_list(
    folder: Annotated[Path, typer.Argument(metavar="[FOLDER]", help="Where they are.")] = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """The runs in a folder, and one level below it, with what each reached."""
    from skill_ttrl.cli.display.views import rows_table, signed
    from skill_ttrl.stages.reports.run_list import list_runs

    found = list_runs(folder)
    if as_json:
        print_json(found)
        return
    rows = []
    for each in found:
        before = "-" if each.before is None else f"{each.before:.3f}"
        after = "-" if each.after is None else f"{each.after:.3f}"
        change = each.after - each.before if each.after is not None and each.before is not None else None
        state = "damaged" if each.fault else "yes" if each.ended else "no"
        path = each.path.removeprefix(f"{folder}/")
        rows.append((path, each.seed, "+".join(each.phases), state, f"{before} → {after}", signed(change, each.change)))
    screen = Console()
    screen.print(rows_table(f"Runs in {folder}", ("run", "seed", "phases", "ended", "avg@k", "change"), rows))
    for each in found:
        if each.fault:
            screen.print(escape_terminal(f"{each.path}: {each.fault}"), markup=False, highlight=False, soft_wrap=True)


def compare(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="A B [C ...]",
            help="Runs, folders of `train --seeds`, or folders of `evaluate --output`; each is compared with the first.",
        ),
    ],
    confidence: Annotated[float, typer.Option(help="Level of the intervals.")] = 0.95,
    as_json: AsJson = False,
) -> None:
    """Compare what policies reached, task by task where they were measured on the same tasks; else as two means, which is said."""
    from skill_ttrl.cli.display.views import number, rows_table, signed
    from skill_ttrl.stages.reports.compare import FIGURES, measured
    from skill_ttrl.stages.reports.compare import compare as differ

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
                number(change.one),
                number(change.other),
                signed(change.difference, change.interval),
            )
            for name, change in each.figures.items()
        ]
        how = "paired over tasks" if each.paired else "not paired"
        tasks = max(change.tasks[0] for change in each.figures.values())
        screen.print(
            rows_table(
                f"{each.other} less {each.one}: {tasks} tasks, {how}", ("figure", "first", "second", "difference"), rows
            )
        )
        for note in each.notes:
            screen.print(escape_terminal(note), markup=False, highlight=False)


def seeds_of(text: str) -> list[int]:
    """Seeds as they are written after `--seeds`: `0,1,2`, with spaces too.

    Raises:
        ConfigError: one is no number of 0 or more.
    """
    words = text.replace(",", " ").split()
    if not words or not all(word.isascii() and word.isdigit() for word in words):
        raise ConfigError(f"--seeds are numbers with commas between, such as 0,1,2; found {text!r}.")
    return [int(word) for word in words]


def train_seeds(
    config: SkillTTRLConfig, seeds: Sequence[int], folder: Path, resume: str | None, text: str, *, as_json: bool
) -> None:
    """Run every seed, each with its own view, and print what they reach together."""
    from skill_ttrl.cli.display.views import RunView
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
    from skill_ttrl.cli.display.tables import inspection_view
    from skill_ttrl.stages.inspecting.inspect_results import seeds_inspection

    screen.print(inspection_view(seeds_inspection(found)))
    screen.print(f"Everything is in {folder}. Look at it: skillttrl inspect {folder}", markup=False, highlight=False)
