"""Carrying out a launch: the checks of `--dry-run`, the ranks, the run with its live view, and its result."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console

from skill_ttrl.cli.display import RunView, dry_run_view, inspection_view, prints_aside, say, show, text_table
from skill_ttrl.errors import ConfigError

if TYPE_CHECKING:
    from skill_ttrl.commands.launch import Launch
    from skill_ttrl.config import SkillTTRLConfig
    from skill_ttrl.runs.summary import Summary


EVERYTHING = "Results: {0}; open {0}/report.html. All metrics: skillttrl inspect {0} --full"


def serve_other_ranks() -> None:
    """On another rank than the driver: carry out its commands to the end, and leave."""
    from skill_ttrl.rl.parallel.launch import rank

    if rank() == 0:
        return
    from skill_ttrl.rl.parallel.driver import serve
    from skill_ttrl.rl.parallel.ranks import join

    serve(join())
    raise typer.Exit


@contextmanager
def driving_ranks() -> Iterator[None]:
    """While entered this process is the driver of the ranks that were started with it, if there are any; they end with it."""
    from skill_ttrl.rl.parallel.launch import launched

    if not launched():
        yield
        return
    from skill_ttrl.rl.parallel.driver import current_driver
    from skill_ttrl.rl.parallel.launch import following_launcher
    from skill_ttrl.rl.parallel.ranks import join

    join()
    with following_launcher():
        try:
            yield
        finally:
            current_driver().dismiss()


def notice(text: str) -> None:
    """Print a line on stderr."""
    say(text, screen=Console(stderr=True))


def run_or_check(found: Launch, *, as_json: bool, dry_run: bool, seeds: list[int] | None = None) -> None:
    """Run a launch, in this process or as the driver of several; with `dry_run` only check it and print its sizes."""
    from skill_ttrl.config import read_config_text, recipe_names, verified_note
    from skill_ttrl.rl.parallel.launch import launched

    config: SkillTTRLConfig = found.load()
    resume: Any = found.options.resume  # the parser has checked it
    text, where = read_config_text(found.source)
    if dry_run:
        from skill_ttrl.commands.dry_run import dry_run as check

        output = None if seeds else found.options.output
        with prints_aside():
            checked = check(config, output=output, resume=resume, asks_ranks=found.asks_ranks)
        show(checked, as_json, dry_run_view)
        if checked.exit_code:
            raise typer.Exit(checked.exit_code)
        return
    folder = found.folder(config.name)
    ranks = config.runtime.nproc or 1
    if launched() or ranks > 1:  # before other ranks are started or waited for
        from skill_ttrl.train.rules import Rules

        Rules(config, asks_ranks=found.asks_ranks, output=None if seeds else folder, resume=resume).check()
    if ranks > 1 and not launched():
        from skill_ttrl.rl.parallel.launch import launch, this_command
        from skill_ttrl.runs.checkpoint import what_is_saved

        raise typer.Exit(launch(this_command(), ranks, notice=notice, saved=lambda: what_is_saved(folder)))
    from skill_ttrl.commands.reports.inspect import seeds_inspection
    from skill_ttrl.commands.train import run, run_seeds

    screen = Console(stderr=as_json)
    with driving_ranks():
        if seeds is not None:
            with ExitStack() as shown:  # each seed with its own view

                def view_of(run: Path) -> RunView:
                    shown.close()
                    return shown.enter_context(RunView(screen, f"{config.name} → {run}"))

                several = run_seeds(config, folder, seeds, resume=resume, progress=view_of, source=text)
            show(several, as_json, lambda each: inspection_view(seeds_inspection(each)), [EVERYTHING.format(folder)])
            return
        note = verified_note(found.sized_as_shipped().load()) if found.source in recipe_names() else ""
        opening = f"{where[0].upper()}{where[1:]} is {note}." if note.startswith("untested") else ""
        with RunView(screen, f"{config.name} → {folder}", opening=opening) as view:
            summary = run(config, folder, resume=resume, progress=view, source=text)
    if as_json:
        show(summary, True)
    else:
        show_outcome(screen, summary, folder)


def show_outcome(screen: Console, summary: Summary, folder: Path) -> None:
    """Print the result of a run at `folder`: the table, the lines under it, and where the files are."""
    from skill_ttrl.commands.reports.summary_text import closing_lines, summary_table, summary_title

    columns, rows, _ = summary_table(summary)
    screen.print(text_table(summary_title(summary), columns, rows), crop=False)
    say(*closing_lines(summary), screen=screen, soft_wrap=False)
    say(EVERYTHING.format(folder), screen=screen)


def seeds_of(text: str) -> list[int]:
    """Parse the value of `--seeds`: `0,1,2`, also with spaces.

    Raises:
        ConfigError: one is not a whole number of 0 or more.
    """
    words = text.replace(",", " ").split()
    if not words or not all(word.isascii() and word.isdigit() for word in words):
        raise ConfigError(f"--seeds are whole numbers separated by commas, such as 0,1,2; found {text!r}.")
    return [int(word) for word in words]
