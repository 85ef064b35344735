"""The vote laboratory as a page: a dot with its interval for each strategy, and how often winners were true by agreement.

Plain SVG drawn here, as in `runs.report_html`: no plotting package, no script, nothing fetched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING

from skill_ttrl.stages.evaluation.vote_comparison import Bin, Difference, Figure
from skill_ttrl.stages.reports.html import html_page, html_table

if TYPE_CHECKING:
    from skill_ttrl.stages.vote import VoteLab

TITLES: Mapping[str, str] = {
    "label_accuracy": "label accuracy",
    "decided_accuracy": "label accuracy where decided",
    "reward_accuracy": "reward accuracy",
    "false_consensus": "false consensus",
    "majority_ratio": "majority ratio",
    "abstained": "abstained",
    "flip_rate": "flip rate",
}
"""What each figure is called."""
_WIDTH, _ROW, _LEFT, _SIDE, _TOP = 640, 26, 150, 280, 30  # of the charts, in pixels
_INK, _SOFT = "#1f6feb", "#bbb"


def vote_html(lab: VoteLab) -> str:
    """The laboratory's result as one HTML document. Names and paths are untrusted: all of them are escaped."""
    judged = [each for each in lab.strategies if each.needs is None]
    shown = [name for name in ("label_accuracy", "majority_ratio") if name in judged[0].figures][:1]
    body = [f"<p>{escape(said_of(lab))}</p>"]
    for name in (*shown, "flip_rate"):
        points = [(each.strategy, each.figures[name]) for each in judged if name in each.figures]
        if points:
            body.append(dots(f"{TITLES[name]}, {lab.settings.confidence:.0%} intervals", points))
    curves = [reliability(f"{each.strategy}: {TITLES['label_accuracy']} by agreement", each.reliability) for each in judged if each.reliability]  # fmt: skip
    if curves:
        text = (
            "How often the winner was true, by its share of the samples. On the dashed line agreement would be the chance of "
            "being right; a dot's area grows with the votes behind it; intervals are Wilson's, as if votes were independent."
        )
        body += ["<h2>Reliability</h2>", f"<p>{text}</p>", *curves]
    body += ["<h2>Figures</h2>", figures_table(lab)]
    if lab.answers_given_up.count:
        body.append(f"<p>{escape(str(lab.answers_given_up))}</p>")
    lacking = [f"<li>{escape(each.strategy)} needs {escape(each.needs)}</li>" for each in lab.strategies if each.needs]
    if lacking:
        body.append(f"<ul>{''.join(lacking)}</ul>")
    return html_page(f"Votes on {lab.source}", body)


def said_of(lab: VoteLab) -> str:
    """What was voted on, in one sentence."""
    few, many = lab.samples
    tries = f"{few}" if few == many else f"{few} to {many}"
    text = f"{lab.problems} problems, {tries} samples each"
    if lab.visits > 1:
        text += f", {lab.visits} visits"
    if lab.trained_on is not None:
        some = {0: "held-out", lab.problems: "transductive"}
        text += ", " + some.get(lab.trained_on, f"{lab.trained_on} of them transductive")
    if lab.labelled < lab.problems:
        text += f"; {lab.labelled or 'none'} of them with a true answer"
    return text + "."


def figures_table(lab: VoteLab) -> str:
    """Every figure of every strategy, and its difference from the majority."""
    judged = [each for each in lab.strategies if each.needs is None]
    names = [name for name in TITLES if any(name in each.figures for each in judged)]
    rows = []
    for each in judged:
        rows.append([each.strategy, *(_shown(each.figures.get(name)) for name in names)])
        if each.differences:
            rows.append(["less majority", *(_changed(each.differences.get(name)) for name in names)])
    return html_table(["strategy", *(TITLES[name] for name in names)], rows)


def dots(title: str, points: Sequence[tuple[str, Figure]]) -> str:
    """A dot and its interval for each name, on one axis from 0 to 1."""
    height = _TOP + _ROW * len(points) + 24
    inner = _WIDTH - _LEFT - 70

    def x(value: float) -> float:
        return _LEFT + inner * min(1.0, max(0.0, value))

    parts = [_axis_line(x(tick), _TOP, height - 24, f"{tick:g}") for tick in (0, 0.25, 0.5, 0.75, 1)]
    for place, (name, figure) in enumerate(points):
        y = _TOP + _ROW * (place + 0.5)
        low, high = figure.interval
        parts.append(
            f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{escape(name[:28])}</text>'
            f'<path d="M{x(low):.1f} {y:.1f}H{x(high):.1f}" stroke="{_INK}" stroke-width="2"/>'
            f'<circle cx="{x(figure.value):.1f}" cy="{y:.1f}" r="4" fill="{_INK}"/>'
            f'<text x="{_WIDTH - 62}" y="{y + 4:.1f}">{figure.value:.3f}</text>'
        )
    return _svg(title, _WIDTH, height, parts)


def reliability(title: str, bins: Sequence[Bin]) -> str:
    """Accuracy over agreement, both from 0 to 1."""
    left, bottom, inner = 40, _SIDE - 30, _SIDE - 70
    most = max(each.votes for each in bins)

    def place(agreement: float, accuracy: float) -> tuple[float, float]:
        return left + inner * agreement, bottom - inner * accuracy

    parts = [f'<path d="M{left} {bottom - inner}V{bottom}H{left + inner}" fill="none" stroke="{_SOFT}"/>']
    parts.append(
        f'<path d="M{left} {bottom}L{left + inner} {bottom - inner}" stroke="{_SOFT}" stroke-dasharray="4 4"/>'
    )
    for tick in (0, 0.5, 1):
        x, y = place(tick, tick)
        parts.append(f'<text x="{x:.1f}" y="{bottom + 14}" text-anchor="middle">{tick:g}</text>')
        parts.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>')
    parts.append(f'<text x="{left + inner / 2:.0f}" y="{_SIDE - 2}" text-anchor="middle">agreement</text>')
    for each in bins:
        x, y = place(each.agreement, each.accuracy)
        (_, low), (_, high) = (place(each.agreement, bound) for bound in each.interval)
        radius = 2 + 5 * (each.votes / most) ** 0.5
        parts.append(
            f'<path d="M{x:.1f} {low:.1f}V{high:.1f}" stroke="{_INK}"/>'
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}" fill="{_INK}" fill-opacity=".7">'
            f"<title>{each.votes} votes, agreement {each.agreement:.2f}, true {each.accuracy:.2f}</title></circle>"
        )
    return _svg(title, _SIDE, _SIDE, parts)


def _axis_line(x: float, top: float, bottom: float, text: str) -> str:
    return (
        f'<path d="M{x:.1f} {top}V{bottom}" stroke="#eee"/>'
        f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{text}</text>'
    )


def _svg(title: str, width: int, height: int, parts: Sequence[str]) -> str:
    return (
        f'<svg width="{width}" height="{height}" role="img" aria-label="{escape(title, quote=True)}">'
        f'<text x="8" y="15">{escape(title)}</text>{"".join(parts)}</svg>'
    )


def _shown(figure: Figure | None) -> str:
    return "-" if figure is None else f"{figure.value:.3f} [{figure.interval[0]:.3f}, {figure.interval[1]:.3f}]"


def _changed(difference: Difference | None) -> str:
    if difference is None:
        return "-"
    low, high = difference.interval
    return f"{difference.value:+.3f} [{low:+.3f}, {high:+.3f}]{' noise' if difference.noise else ''}"
