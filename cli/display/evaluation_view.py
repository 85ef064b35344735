"""An evaluation on a screen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

from skill_ttrl.cli.display.fitted import FittedTable

if TYPE_CHECKING:
    from skill_ttrl.stages.evaluation.results import Evaluation


def evaluation_view(found: Evaluation, *, full: bool = False) -> RenderableType:
    """The metrics that matter most, or with `full` all of them, with intervals; the title says if the policy was trained on these
    problems.
    """
    from skill_ttrl.stages.evaluate import exposure
    from skill_ttrl.stages.reports.summary_text import evaluation_table

    where = f" of {found.source}" if found.source else f" ({found.split})"
    title = f"{found.label}: {found.problems} problems{where}, {exposure(found.transductive)}"
    _, rows, main = evaluation_table([found])
    notes = [f"Controls: {found.no_controls}."] if found.no_controls else []
    notes += [] if full or main == len(rows) else [f"{len(rows) - main} more rows: --full"]
    shown = rows if full else rows[:main]
    return Group(FittedTable(title, ("metric", "value"), shown), *(Text(note, "dim") for note in notes))
