"""A voting comparison as a page: a dot with its interval for each strategy, and how often winners were true by agreement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from skill_ttrl.stages.evaluation.vote_comparison import Replayed
from skill_ttrl.stages.evaluation.vote_figures import Difference, Figure
from skill_ttrl.stages.evaluation.vote_lab import TITLES, VoteLab, describe_samples
from skill_ttrl.stages.reports.html import render_report

_TOP, _ROW = 30, 26  # of a chart of dots, in pixels


def vote_html(lab: VoteLab) -> str:
    """The comparison as one HTML document. Names and paths are untrusted: all of them are escaped."""
    judged = [each for each in lab.strategies if each.requires is None]
    shown = [name for name in ("label_accuracy", "majority_ratio") if name in judged[0].figures][:1]
    charts = []
    for name in (*shown, "flip_rate"):
        points = [(each.strategy, each.figures[name]) for each in judged if name in each.figures]
        if points:
            charts.append(_dots(f"{TITLES[name]}, {lab.settings.confidence:.0%} intervals", points))
    names = [name for name in TITLES if any(name in each.figures for each in judged)]
    return render_report(
        "vote",
        f"Votes on {lab.source}",
        samples=describe_samples(lab),
        dots=charts,
        curves=[_reliability(each) for each in judged if each.reliability],
        columns=["strategy", *(TITLES[name] for name in names)],
        rows=_figure_rows(judged, names),
        undecided=lab.undecided_answers,
        lacking=[each for each in lab.strategies if each.requires],
    )


def _figure_rows(judged: Sequence[Replayed], names: Sequence[str]) -> list[list[str]]:
    """Every figure of every strategy, and its difference from the majority."""
    rows = []
    for each in judged:
        rows.append([each.strategy, *(_shown(each.figures.get(name)) for name in names)])
        if each.differences:
            rows.append(["less majority", *(_changed(each.differences.get(name)) for name in names)])
    return rows


def _dots(title: str, points: Sequence[tuple[str, Figure]]) -> dict[str, Any]:
    """A dot and its interval for each name, on one axis from 0 to 1."""

    def x(value: float) -> float:
        return 150 + 420 * min(1.0, max(0.0, value))

    dots = [
        {
            "name": name,
            "value": figure.value,
            "x": x(figure.value),
            "low": x(figure.interval[0]),
            "high": x(figure.interval[1]),
            "y": _TOP + _ROW * (place + 0.5),
        }
        for place, (name, figure) in enumerate(points)
    ]
    return {"title": title, "dots": dots, "bottom": _TOP + _ROW * len(points)}


def _reliability(each: Replayed) -> dict[str, Any]:
    """Accuracy over agreement, both from 0 to 1."""
    title = f"{each.strategy}: {TITLES['label_accuracy']} by agreement"
    return {"title": title, "bins": each.reliability, "most": max(bin.votes for bin in each.reliability)}


def _shown(figure: Figure | None) -> str:
    return "-" if figure is None else f"{figure.value:.3f} [{figure.interval[0]:.3f}, {figure.interval[1]:.3f}]"


def _changed(difference: Difference | None) -> str:
    if difference is None:
        return "-"
    low, high = difference.interval
    return f"{difference.value:+.3f} [{low:+.3f}, {high:+.3f}]{' unclear' if difference.verdict == 'unclear' else ''}"
