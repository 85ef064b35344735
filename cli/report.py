"""`skillttrl report`: one self-contained HTML page on runs, their votes, rollouts and skills."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from skill_ttrl.cli.display import show
from skill_ttrl.cli.launching import notice
from skill_ttrl.cli.options import AsJson

Targets = Annotated[
    list[Path],
    typer.Argument(
        metavar="RUN [RUN ...]",
        help="Runs, folders of `train --seeds` or of runs, optimizations, skill banks. Several are overlaid and compared with the first.",
    ),
]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help="HTML file. Default: report.html in the folder of the first RUN; here if it is read-only.",
    ),
]


def report(runs: Targets, output: Output = None, as_json: AsJson = False) -> None:
    """Write one HTML page on a run, or on several compared: verdict, curves, votes, rollouts, skills, warnings.

    The file needs no network and no server: open it, or send it.

    Example: `skillttrl report runs/quickstart`
    """
    from skill_ttrl.commands.reports.page_data import REPORT, write_report

    if output is None and not os.access(runs[0], os.W_OK):
        output = Path(REPORT)
    notice(f"Reading {', '.join(map(str, runs))} ...")
    file, left_out = write_report(runs, output)
    show({"file": str(file), "left_out": left_out}, as_json, lines=[*left_out, str(file)])
