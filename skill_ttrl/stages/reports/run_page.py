"""A report that opens in any browser: one HTML file with the summary's table and a curve for every figure.

The curves are plain SVG drawn here: no plotting package, no script, nothing fetched.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from pathlib import Path

from skill_ttrl.runs.folder import RunFolder
from skill_ttrl.runs.reader import Run, read_run
from skill_ttrl.runs.summary import Summary, learned_by, sentence, summary_rows, usage_lines
from skill_ttrl.stages.reports.baseline import BaselineComparison, baseline_lines, find_baseline
from skill_ttrl.stages.reports.html import html_page

Point = tuple[float, float]
"""(step, value), both finite."""

_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM = 360, 170, 66, 26, 22  # of one chart, in pixels

_TITLE = 56  # characters of a title that fit above a chart

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
    charts = [line_chart(title, points) for title, points in curves(run)]
    body = []
    if run.summary is not None:
        body.append(_summary_html(run.summary, find_baseline(run.path), baseline_lines(run.path)))
    body += ["<h2>Curves by step</h2>", *(charts or ["<p>No figure has two steps yet.</p>"])]
    body.append(f"<h2>Config</h2><pre>{escape(run.config.to_yaml(sparse=True))}</pre>")
    return html_page(f"{run.config.name}, seed {run.config.seed}", body)


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


def line_chart(title: str, points: Sequence[Point]) -> str:
    """One curve as an SVG element, with its lowest and highest value and step beside the axes.

    Args:
        title: Written above; escaped here.
        points: At least one.
    """
    steps, values = [x for x, _ in points], [y for _, y in points]
    low, high = min(values), max(values)
    first, last = min(steps), max(steps)
    inner_width, inner_height = _WIDTH - _LEFT - 10, _HEIGHT - _TOP - _BOTTOM

    def place(point: Point) -> str:
        x = _LEFT + inner_width * ((point[0] - first) / (last - first) if last > first else 0.5)
        y = _TOP + inner_height * (1 - ((point[1] - low) / (high - low) if high > low else 0.5))
        return f"{x:.1f},{y:.1f}"

    bottom = _TOP + inner_height
    return (
        f'<svg width="{_WIDTH}" height="{_HEIGHT}" role="img" aria-label="{escape(title, quote=True)}">'
        f'<text x="4" y="15">{escape(title if len(title) <= _TITLE else title[: _TITLE - 1] + "…")}<title>{escape(title)}</title></text>'
        f'<path d="M{_LEFT} {_TOP}V{bottom}H{_WIDTH - 10}" fill="none" stroke="#bbb"/>'
        f'<polyline points="{" ".join(map(place, points))}" fill="none" stroke="#1f6feb" stroke-width="2"/>'
        f'<text x="{_LEFT - 4}" y="{_TOP + 8}" text-anchor="end">{high:.3g}</text>'
        f'<text x="{_LEFT - 4}" y="{bottom}" text-anchor="end">{low:.3g}</text>'
        f'<text x="{_LEFT}" y="{_HEIGHT - 6}">{first:g}</text>'
        f'<text x="{_WIDTH - 10}" y="{_HEIGHT - 6}" text-anchor="end">{last:g}</text></svg>'
    )


def _summary_html(summary: Summary, beside: BaselineComparison | None, lines: Sequence[str]) -> str:
    def cell(value: float | None) -> str:
        return f"<td>{'-' if value is None else f'{value:.3f}'}</td>"

    others = None if beside is None else {label: after for label, _, after in summary_rows(beside.summary)}
    rows = "".join(
        f"<tr><td>{escape(label)}</td>{cell(before)}{cell(after)}"
        f"{'' if others is None else cell(others.get(label))}</tr>"
        for label, before, after in summary_rows(summary)
    )
    column = "" if beside is None else f"<th>after, {escape(learned_by(beside.summary))}</th>"
    told = "".join(
        f"<p>{escape(text)}</p>"
        for text in [*usage_lines(summary.usage), *([summary.stopped] if summary.stopped else []), *lines]
    )
    warnings = "".join(f'<p class="warning">{escape(text)}</p>' for text in summary.warnings)
    held = "the tasks it trained on (transductive)" if summary.transductive else "held-out tasks"
    return (
        f"{warnings}<p>{escape(sentence(learned_by(summary)))}; {summary.problems} problems, {held}.</p>"
        f"<table><tr><th>figure</th><th>before</th><th>after</th>{column}</tr>{rows}</table>{told}"
    )
