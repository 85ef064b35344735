"""Tables, JSON and plot of the cells of `algorithms.py`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from skill_ttrl.intervals import paired_difference

BASE, NO_TRAINING = "grpo", "no training"
FIGURES = {"accuracy": "avg@k", "majority": "maj@k", "greedy": "greedy", "score": "score"}
WIDTH, LEFT, ROW, PANEL = 820, 190, 18, 46


@dataclass(frozen=True)
class Cell:
    """One finished run."""

    recipe: str
    seed: int
    arm: str
    settings: list[str]
    before: dict[str, list[float]]
    """Values in [0, 1] of each problem, by figure."""
    after: dict[str, list[float]]
    samples: int
    """Rollouts that were drawn in training."""
    seconds: float
    """Wall time, both evaluations included."""
    warnings: list[str]


@dataclass(frozen=True)
class Row:
    """One arm of a recipe over seeds."""

    arm: str
    after: dict[str, float]
    """Mean over seeds by figure."""
    lowest: float
    highest: float
    """Of the figure of comparison (`lead_of`), over seeds."""
    difference: tuple[float, float, float] | None
    """(figure of comparison less GRPO's, low, high), paired over the problems of all seeds."""
    better: int
    worse: int
    """Seeds whose own paired interval against GRPO lies above, below 0."""
    seeds: int
    samples: float
    seconds: float
    """Means over seeds."""


def write_results(cells: Sequence[Cell], output: Path) -> str:
    """Write `table.md`, `table.json` and `plot.svg`; gives the first."""
    found = {
        recipe: rows_of([each for each in cells if each.recipe == recipe]) for recipe in _order(c.recipe for c in cells)
    }
    text = "\n\n".join(f"### {recipe}\n\n{table(rows)}" for recipe, rows in found.items())
    (output / "table.md").write_text(text + "\n", encoding="utf-8")
    shown = {recipe: [row.__dict__ for row in rows] for recipe, rows in found.items()}
    (output / "table.json").write_text(json.dumps(shown, indent=1) + "\n", encoding="utf-8")
    (output / "plot.svg").write_text(plot(found), encoding="utf-8")
    return text


def rows_of(cells: Sequence[Cell]) -> list[Row]:
    """A row for the start, then one for each arm that every seed of GRPO has, controls first."""
    base = {cell.seed: cell for cell in cells if cell.arm == BASE}
    rows = [_row(NO_TRAINING, {seed: cell.before for seed, cell in base.items()}, [], base)] if base else []
    for arm in _order(cell.arm for cell in cells):
        own = [cell for cell in cells if cell.arm == arm]
        rows.append(_row(arm, {cell.seed: cell.after for cell in own}, own, base))
    return rows


def _row(arm: str, found: dict[int, dict[str, list[float]]], own: Sequence[Cell], base: dict[int, Cell]) -> Row:
    means = {name: fmean(fmean(each[name]) for each in found.values()) for name in next(iter(found.values()))}
    lead = lead_of(means)
    leads = [fmean(each[lead]) for each in found.values()]
    pairs = [(base[seed].after[lead], each[lead]) for seed, each in found.items() if seed in base]
    apart = [paired_difference(*pair) for pair in pairs]
    together = None
    if arm != BASE and pairs:
        together = paired_difference(*([value for pair in pairs for value in pair[side]] for side in (0, 1)))
    return Row(
        arm,
        means,
        min(leads),
        max(leads),
        together,
        sum(low > 0 for _, low, _ in apart) if together else 0,
        sum(high < 0 for _, _, high in apart) if together else 0,
        len(found),
        fmean(cell.samples for cell in own) if own else 0.0,
        fmean(cell.seconds for cell in own) if own else 0.0,
    )


def lead_of(figures: Iterable[str]) -> str:
    """The figure that arms are compared by: the score where there is one, for success at single episodes says less."""
    return "score" if "score" in figures else "accuracy"


def table(rows: Sequence[Row]) -> str:
    """One row an arm, Markdown."""
    figures = [name for name in FIGURES if all(name in row.after for row in rows)]
    lead = FIGURES[lead_of(figures)]
    heads = ["arm", *(f"{FIGURES[name]} after" for name in figures), f"{lead}, lowest to highest seed"]
    heads += [f"{lead} less GRPO's (95 %)", "seeds better, worse", "samples", "s"]
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    for row in rows:
        found = row.difference
        against = "" if found is None else f"{found[0]:+.3f} [{found[1]:+.3f}, {found[2]:+.3f}]"
        cells = [row.arm, *(f"{row.after[name]:.3f}" for name in figures), f"{row.lowest:.3f} to {row.highest:.3f}"]
        cells += [against, "" if found is None else f"{row.better}, {row.worse} of {row.seeds}"]
        cells += [f"{row.samples:.0f}" if row.seconds else "0", f"{row.seconds:.0f}" if row.seconds else ""]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def plot(found: dict[str, list[Row]]) -> str:
    """The figure of comparison less GRPO's, with its interval, one panel a recipe, as an SVG picture."""
    panels, top = [], 10
    for recipe, rows in found.items():
        shown = [row for row in rows if row.difference]
        if shown:
            panels.append(_panel(recipe, shown, top))
            top += PANEL + ROW * len(shown)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{top}" font-family="sans-serif" font-size="12">'
        f'<rect width="100%" height="100%" fill="#fff"/>{"".join(panels)}</svg>\n'
    )


def _panel(recipe: str, rows: Sequence[Row], top: int) -> str:
    ends = [value for row in rows if row.difference for value in row.difference] + [0.0]
    low, high = min(ends), max(ends)
    span = (high - low) or 1.0

    def x(value: float) -> float:
        return LEFT + (WIDTH - LEFT - 70) * (value - low) / span

    bottom = top + 24 + ROW * len(rows)
    parts = [
        f'<text x="10" y="{top + 14}" font-weight="bold">{recipe}: {FIGURES[lead_of(rows[0].after)]} less that of GRPO</text>',
        f'<line x1="{x(0):.1f}" y1="{top + 20}" x2="{x(0):.1f}" y2="{bottom}" stroke="#999" stroke-dasharray="3 3"/>',
    ]
    for place, row in enumerate(rows):
        y = top + 34 + ROW * place
        value, left, right = row.difference or (0.0, 0.0, 0.0)
        colour = "#1a7f37" if left > 0 else "#cf222e" if right < 0 else "#57606a"
        parts += [
            f'<text x="{LEFT - 10}" y="{y + 4}" text-anchor="end">{row.arm}</text>',
            f'<line x1="{x(left):.1f}" y1="{y}" x2="{x(right):.1f}" y2="{y}" stroke="{colour}" stroke-width="2"/>',
            f'<circle cx="{x(value):.1f}" cy="{y}" r="4" fill="{colour}"/>',
            f'<text x="{WIDTH - 60}" y="{y + 4}" fill="{colour}">{value:+.3f}</text>',
        ]
    return "".join(parts)


def _order(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))
