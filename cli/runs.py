"""Results of several runs: `skillttrl inspect A B` and `train --seeds`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from skill_ttrl.cli.display.fitted import FittedTable
from skill_ttrl.cli.display.output import print_json, say
from skill_ttrl.cli.display.tables import inspection_view
from skill_ttrl.cli.display.views import RunView, number, signed
from skill_ttrl.errors import ConfigError

if TYPE_CHECKING:
    from skill_ttrl.config import SkillTTRLConfig

EVERYTHING = "Results: {0}. All metrics: skillttrl inspect {0} --full"


def compare(paths: Sequence[Path], *, as_json: bool) -> None:
    """Compare the results of policies with the first: paired over tasks that both were evaluated on, else as two means."""
    from skill_ttrl.stages.reports.compare import FIGURES, measured
    from skill_ttrl.stages.reports.compare import compare as differ
    from skill_ttrl.statistics import PAIRED_TEST, verdict

    found = differ(paths)
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
