"""The report of a run as one HTML file: the summary's table and a curve for every figure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jinja2

from skill_ttrl.llm.openai.ledger import usage_lines
from skill_ttrl.runs.folder import RunFolder
from skill_ttrl.runs.reader import Run, read_run
from skill_ttrl.stages.reports.baseline import baseline_lines, find_baseline
from skill_ttrl.stages.reports.summary_text import learned_by, sentence, summary_rows

Point = tuple[float, float]
"""(step, value), both finite."""


class _Box(NamedTuple):
    """Where the axes of a chart stand, in pixels."""

    left: int
    top: int
    right: int
    bottom: int


_BOX = _Box(66, 26, 350, 148)

FIRST = tuple(
    f"rl: {name}"
    for name in (
        "success",
        "score",
        "majority_ratio",
        "label_accuracy",
        "reward",
        "answer_entropy",
        "flip_rate",
        "entropy",
    )
)
"""Curves that say how episodes and votes fare: they stand first."""
BY_TYPE = "rl: success/"
"""Begins the curves of single types of task: they follow."""


def write_report_html(folder: RunFolder) -> Path:
    """Write `report.html` into a run folder from its metrics and, where it has ended, its summary.

    Raises:
        RunFolderError: the folder cannot be written, or a file in it cannot be read.
    """
    return folder.write_text("report.html", report_html(read_run(folder.path)))


def report_html(run: Run) -> str:
    """The report of a run as one HTML document."""
    pages = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
    )
    return pages.get_template("run.html.j2").render(
        title=f"{run.config.name}, seed {run.config.seed}",
        **_summary_facts(run),
        charts=[line_chart(title, points) for title, points in curves(run)],
        box=_BOX,
        config=run.config.to_yaml(sparse=True),
    )


def curves(run: Run) -> list[tuple[str, list[Point]]]:
    """(title, points) of every figure in `metrics.jsonl` that changes, those of `FIRST` before the others, types of task between."""
    points: dict[str, list[Point]] = {}
    for record in run.metrics.to_dict("records"):
        for name, value in record.items():
            number = isinstance(value, int | float) and name not in ("step", "phase") and math.isfinite(value)
            if number:
                points.setdefault(f"{record['phase']}: {name}", []).append((float(record["step"]), float(value)))
    same: dict[
        tuple[Point, ...], list[str]
    ] = {}  # some figures have two names, or are equal all the time: one curve for all
    for title, found in points.items():
        if len({value for _, value in found}) > 1:
            same.setdefault(tuple(found), []).append(title)
    moving = [(_joined(sorted(titles, key=_rank)), list(found)) for found, titles in same.items()]

    return sorted(moving, key=lambda curve: _rank(curve[0].partition(" = ")[0]))


def _rank(title: str) -> int:
    return FIRST.index(title) if title in FIRST else len(FIRST) + (not title.startswith(BY_TYPE))


def _joined(titles: Sequence[str]) -> str:
    """`rl: reward = label_accuracy`: the phase once."""
    first, *others = titles
    phase = f"{first.partition(': ')[0]}: "
    return " = ".join([first, *(title.removeprefix(phase) for title in others)])


def line_chart(title: str, points: Sequence[Point]) -> dict[str, str]:
    """One curve as the template draws it: its points in pixels, and the lowest and highest value and step, which stand by the axes.

    Args:
        title: Written above, shortened where it is too long.
        points: At least one.
    """
    steps, values = [x for x, _ in points], [y for _, y in points]
    low, high = min(values), max(values)
    first, last = min(steps), max(steps)

    def place(point: Point) -> str:
        x = _BOX.left + (_BOX.right - _BOX.left) * ((point[0] - first) / (last - first) if last > first else 0.5)
        y = _BOX.top + (_BOX.bottom - _BOX.top) * (1 - ((point[1] - low) / (high - low) if high > low else 0.5))
        return f"{x:.1f},{y:.1f}"

    drawn = " ".join(map(place, points))
    return {"title": title, "points": drawn, "low": f"{low:.3g}", "high": f"{high:.3g}", "first": f"{first:g}", "last": f"{last:g}"}  # fmt: skip


def _summary_facts(run: Run) -> dict[str, Any]:
    """The summary of a run that has ended, with the run to compare it with, where there is one."""
    summary = run.summary
    if summary is None:
        return {"summary": None}
    baseline = find_baseline(run.path)
    others = {} if baseline is None else {label: after for label, _, after in summary_rows(baseline.summary)}
    return {
        "summary": summary,
        "learned": sentence(learned_by(summary)),
        "baseline": None if baseline is None else learned_by(baseline.summary),
        "rows": [(*row, others.get(row[0])) for row in summary_rows(summary)],
        "notes": [
            *usage_lines(summary.usage),
            *([summary.stopped] if summary.stopped else []),
            *baseline_lines(run.path),
        ],
    }
