"""Tables, JSON and plot of the cells of `algorithms.py`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from algorithms_arms import COIN

from skill_ttrl.statistics import paired_difference

BASE, NO_TRAINING = "grpo", "no training"
FIGURES = {"accuracy": "avg@k", "majority": "maj@k", "greedy": "greedy", "score": "score"}
Difference = tuple[float, float, float]
"""(difference of means, low, high), paired over problems; of several seeds over the problems of all."""
Values = dict[str, list[float]]
FROM_START = ("collapse",)
"""Recipes whose arms are drawn by their change, not against GRPO: what does not fall is the question."""
WIDTH, LEFT, RIGHT, ROW, PANEL = 860, 250, 140, 18, 46


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
    gain: Difference | None
    """Figure of comparison less that before training."""
    rose: int
    fell: int
    """Seeds whose own paired interval of the gain lies above, below 0."""
    difference: Difference | None
    """Figure of comparison less that of the arm compared with."""
    better: int
    worse: int
    """Seeds whose own paired interval of that difference lies above, below 0."""
    seeds: int
    samples: float
    seconds: float
    """Means over seeds."""


def write_results(cells: Sequence[Cell], output: Path, against: str = BASE) -> str:
    """Write `table.md`, `table.json` and `plot.svg`, with differences to the arm `against`; gives the first."""
    recipes = _order(cell.recipe for cell in cells)
    found = {recipe: rows_of([cell for cell in cells if cell.recipe == recipe], against) for recipe in recipes}
    text = "\n\n".join(f"### {recipe}\n\n{table(rows, against)}" for recipe, rows in found.items())
    (output / "table.md").write_text(text + "\n", encoding="utf-8")
    shown = {recipe: [row.__dict__ for row in rows] for recipe, rows in found.items()}
    (output / "table.json").write_text(json.dumps(shown, indent=1) + "\n", encoding="utf-8")
    (output / "plot.svg").write_text(plot(found, against), encoding="utf-8")
    return text


def rows_of(cells: Sequence[Cell], against: str = BASE) -> list[Row]:
    """A row for the start, then one for each arm in the order of the cells, with its difference to the arm `against`."""
    base = {cell.seed: cell for cell in cells if cell.arm == against}
    rows = [_row(NO_TRAINING, {seed: cell.before for seed, cell in base.items()}, [], base)] if base else []
    for arm in _order(cell.arm for cell in cells):
        own = [cell for cell in cells if cell.arm == arm]
        rows.append(_row(arm, {cell.seed: cell.after for cell in own}, own, base))
    return rows


def _row(arm: str, found: dict[int, Values], own: Sequence[Cell], base: dict[int, Cell]) -> Row:
    means = {name: fmean(fmean(each[name]) for each in found.values()) for name in next(iter(found.values()))}
    lead = lead_of(means)
    leads = [fmean(each[lead]) for each in found.values()]
    gain, rose, fell = _against([(cell.before[lead], cell.after[lead]) for cell in own])
    pairs = [
        (base[seed].after[lead], each[lead]) for seed, each in found.items() if seed in base and base[seed].arm != arm
    ]
    difference, better, worse = _against(pairs)
    return Row(
        arm,
        means,
        min(leads),
        max(leads),
        gain,
        rose,
        fell,
        difference,
        better,
        worse,
        len(found),
        fmean(cell.samples for cell in own) if own else 0.0,
        fmean(cell.seconds for cell in own) if own else 0.0,
    )


def _against(pairs: Sequence[tuple[list[float], list[float]]]) -> tuple[Difference | None, int, int]:
    """(difference over all pairs, pairs whose own interval lies above 0, below 0) of (one, other), a pair a seed."""
    if not pairs:
        return None, 0, 0
    apart = [paired_difference(*pair) for pair in pairs]
    together = paired_difference(*([value for pair in pairs for value in pair[side]] for side in (0, 1)))
    return together, sum(low > 0 for _, low, _ in apart), sum(high < 0 for _, _, high in apart)


def lead_of(figures: Iterable[str]) -> str:
    """The figure that arms are compared by: the score where there is one, for success at single episodes says less."""
    return "score" if "score" in figures else "accuracy"


def table(rows: Sequence[Row], against: str = BASE) -> str:
    """One row an arm, Markdown."""
    figures = [name for name in FIGURES if all(name in row.after for row in rows)]
    if "score" in figures:  # episodes that are scored give no answer to vote on
        figures = [name for name in figures if name != "majority"]
    lead = FIGURES[lead_of(figures)]
    heads = ["arm", *(f"{FIGURES[name]} after" for name in figures), f"{lead}, seeds", "change (95 %)", "rose, fell"]
    heads += [f"less {against}'s (95 %)", "better, worse", "samples", "s"]
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    for row in rows:
        cells = [row.arm, *(f"{row.after[name]:.3f}" for name in figures), f"{row.lowest:.3f} to {row.highest:.3f}"]
        cells += _cells(row.gain, row.rose, row.fell, row.seeds)
        cells += _cells(row.difference, row.better, row.worse, row.seeds)
        cells += [f"{row.samples:.0f}", f"{row.seconds:.0f}"] if row.samples else ["", ""]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _cells(found: Difference | None, up: int, down: int, seeds: int) -> list[str]:
    if found is None:
        return ["", ""]
    return [f"{found[0]:+.3f} [{found[1]:+.3f}, {found[2]:+.3f}]", f"{up}, {down} of {seeds}"]


def plot(found: dict[str, list[Row]], against: str = BASE) -> str:
    """Draw an SVG picture, one panel a recipe: the score of each arm less that of `against`, and of `FROM_START` less the start.

    At the right stands how far the same arm goes from the start with a coin as reward, where that was run.
    """
    panels, top = [], 10
    for recipe, rows in found.items():
        from_start = recipe in FROM_START
        coins = {row.arm.removesuffix(COIN): row.gain for row in rows if row.arm.endswith(COIN)}
        shown = [row for row in rows if row.arm != NO_TRAINING and not row.arm.endswith(COIN)]
        marks = [(row.arm, row.gain if from_start else row.difference, coins.get(row.arm)) for row in shown]
        marks = [mark for mark in marks if mark[1]]
        if marks:
            what = "change from the start" if from_start else f"less that of {against}{_said(coins.get(against))}"
            panels.append(_panel(f"{recipe}: {FIGURES[lead_of(rows[0].after)]}, {what}", marks, top))
            top += PANEL + ROW * len(marks)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{top}" font-family="sans-serif" font-size="12">'
        f'<rect width="100%" height="100%" fill="#fff"/>{"".join(panels)}</svg>\n'
    )


def _said(coin: Difference | None) -> str:
    return f" (coin: {coin[0]:+.3f})" if coin else ""


def _panel(title: str, marks: Sequence[tuple[str, Difference | None, Difference | None]], top: int) -> str:
    low, high = _axis([values for _, values, _ in marks if values])

    def x(value: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT - 10) * (min(max(value, low), high) - low) / (high - low)

    bottom = top + 24 + ROW * len(marks)
    parts = [
        f'<text x="10" y="{top + 14}" font-weight="bold">{title}</text>',
        f'<line x1="{x(0):.1f}" y1="{top + 20}" x2="{x(0):.1f}" y2="{bottom}" stroke="#999" stroke-dasharray="3 3"/>',
    ]
    for place, (arm, values, coin) in enumerate(marks):
        y = top + 34 + ROW * place
        value, left, right = values or (0.0, 0.0, 0.0)
        colour = "#1a7f37" if left > 0 else "#cf222e" if right < 0 else "#57606a"
        beyond = "" if low <= value <= high else "◀" if value < low else "▶"
        parts += [
            f'<text x="{LEFT - 10}" y="{y + 4}" text-anchor="end">{arm}</text>',
            f'<line x1="{x(left):.1f}" y1="{y}" x2="{x(right):.1f}" y2="{y}" stroke="{colour}" stroke-width="2"/>',
            f'<text x="{x(value):.1f}" y="{y + 4}" text-anchor="middle" fill="{colour}">{beyond}</text>'
            if beyond
            else f'<circle cx="{x(value):.1f}" cy="{y}" r="4" fill="{colour}"/>',
            f'<text x="{WIDTH - RIGHT}" y="{y + 4}" fill="{colour}">{value:+.3f}{_said(coin)}</text>',
        ]
    return "".join(parts)


def _axis(values: Sequence[Difference]) -> tuple[float, float]:
    """Ends of an axis that shows 0 and all intervals but those far outside the others, which are drawn at the end they lie beyond."""
    sizes = sorted(max(abs(low), abs(high)) for _, low, high in values)
    reach = 1.5 * sizes[(2 * len(sizes)) // 3]
    lows, highs = ([each[side] for each in values if abs(each[side]) <= reach] for side in (1, 2))
    low, high = min([*lows, 0.0]), max([*highs, 0.0])
    margin = 0.05 * (high - low) or 0.01
    return low - margin, high + margin


def _order(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))
