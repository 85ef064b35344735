"""The report of a run as one HTML file: the summary's table, the lines under it, a curve for every metric, and its last episodes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import jinja2
from pydantic import ValidationError

from skill_ttrl.errors import RunFolderError
from skill_ttrl.runs.folder import RunFolder
from skill_ttrl.runs.metrics import metric_rows
from skill_ttrl.runs.reader import Run, read_run
from skill_ttrl.sanitize import escape_terminal
from skill_ttrl.stages.reports.summary_text import closing_lines, summary_table, summary_title
from skill_ttrl.types import Trajectory, first_problem, from_json
from skill_ttrl.types.thoughts import split_thought

FIRST = ("success", "score", "majority_ratio", "copied_winners", "label_accuracy", "reward")
"""Metrics whose curves come first, and are drawn where they stay the same too."""
EPISODES, TAIL = 4, 2**22
"""Most episodes that are shown, and bytes at the end of `trajectories.jsonl` in which they are looked for."""
WIDTH, HEIGHT = 280, 120
"""Of a chart, in pixels."""


def write_report_html(folder: RunFolder) -> Path:
    """Write `report.html` into a run folder from its metrics and, where it has ended, its summary.

    Raises:
        RunFolderError: the folder cannot be written, or a file in it cannot be read.
    """
    run = read_run(folder.path)
    summary = run.summary
    template = (Path(__file__).parent / "templates" / "run.html.j2").read_text(encoding="utf-8")
    page = jinja2.Environment(autoescape=True, trim_blocks=True, undefined=jinja2.StrictUndefined).from_string(template)
    text = page.render(
        title=f"{run.config.name}, seed {run.config.seed}" if summary is None else summary_title(summary),
        table=None if summary is None else summary_table(summary, full=True),
        lines=[] if summary is None else closing_lines(summary, full=True),
        charts=curves(run),
        episodes=_episodes(folder.path / "trajectories.jsonl"),
        config=run.config.to_yaml(sparse=True),
        width=WIDTH,
        height=HEIGHT,
    )
    return folder.write_text("report.html", text)


def _episodes(path: Path) -> list[dict[str, Any]]:
    """The last episodes of a file: the task, (thought, content) of each turn, and the answer; none where there is no file."""
    if not path.is_file():
        return []
    with path.open("rb") as stream:
        start = max(0, path.stat().st_size - TAIL)
        stream.seek(start)
        lines = stream.read().split(b"\n")[start > 0 : -1][-EPISODES:]
    try:
        found = [from_json(Trajectory, line) for line in lines]
    except ValidationError as error:
        raise RunFolderError(f"{path}: one of its last lines is no trajectory: {first_problem(error)}.") from None
    return [
        {
            "task": escape_terminal(each.task.id),
            "turns": [
                [escape_terminal(part).strip() for part in split_thought(turn.model_text)] for turn in each.steps
            ],
            "answer": escape_terminal(each.answer or "-"),
        }
        for each in found
    ]


def curves(run: Run) -> list[dict[str, Any]]:
    """A chart for every metric in `metrics.jsonl` that changes or is of `FIRST`: its points in pixels, and the range of its steps and values."""
    points: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for record in metric_rows(run.path):  # without pandas: every training writes this page
        for name, value in record.items():
            if name not in ("step", "phase") and isinstance(value, int | float) and math.isfinite(value):
                points.setdefault((str(record["phase"]), str(name)), []).append((float(record["step"]), float(value)))
    charts = []
    for phase, name in sorted(points, key=lambda key: FIRST.index(key[1]) if key[1] in FIRST else len(FIRST)):
        steps, values = zip(*points[phase, name], strict=True)
        low, high, first, last = min(values), max(values), min(steps), max(steps)
        if first == last or (low == high and name not in FIRST):
            continue
        places = (
            (WIDTH * (step - first) / (last - first), HEIGHT * (high - value) / ((high - low) or 1))
            for step, value in zip(steps, values, strict=True)
        )
        drawn = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        span = f"steps {first:g} to {last:g}, {low:.3g} to {high:.3g}"
        charts.append({"title": f"{phase}: {name}", "points": drawn, "span": span})
    return charts
