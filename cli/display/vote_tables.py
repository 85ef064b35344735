"""A voting comparison on a screen: strategies, and their differences from the majority."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

from skill_ttrl.cli.display.fitted import FittedTable
from skill_ttrl.sanitize import escape_terminal, one_line

if TYPE_CHECKING:
    from skill_ttrl.stages.vote import Replayed, VoteLab

MAX_NAME = 24
"""Longest name in a table in characters."""


def lab_view(lab: VoteLab, *, full: bool = False) -> RenderableType:
    """The main metric of every strategy, with the difference from the majority and its verdict; with `full` every metric."""
    from skill_ttrl.stages.vote import TITLES
    from skill_ttrl.statistics import PAIRED_TEST

    judged = [each for each in lab.strategies if each.requires is None]
    names = [name for name in TITLES if any(name in each.figures for each in judged)]
    parts: list[RenderableType] = [Text(escape_terminal(f"{lab.source}: {lab.describe_samples()}"), "bold")]
    for name in names if full else names[:1]:
        rows = [_row(each, name) for each in judged]
        columns = ("strategy", TITLES[name], "less majority", "verdict")[: 4 if len(judged) > 1 else 2]
        parts.append(FittedTable("", columns, [row[: len(columns)] for row in rows]))
    if not full:
        others = ", ".join(
            f"{TITLES[name]} {judged[0].figures[name].value:.3f}" for name in names[1:] if name in judged[0].figures
        )
        parts.append(Text(f"{judged[0].strategy}: {others}. Every strategy: --full"))
    if len(judged) > 1:
        parts.append(Text(f"Differences are paired by problem, with {lab.confidence:.0%} intervals; {PAIRED_TEST}."))
    lines = [f"{one_line(each.strategy, MAX_NAME)} needs {each.requires}" for each in lab.strategies if each.requires]
    lines += [str(lab.undecided_answers)] if lab.undecided_answers.count else []
    return Group(*parts, *(Text(escape_terminal(line), "yellow") for line in lines))


def _row(each: Replayed, name: str) -> Sequence[str | None]:
    """A strategy's metric, its difference from the majority, and the verdict."""
    from skill_ttrl.stages.reports.inspection import with_interval

    label, figure, difference = one_line(each.strategy, MAX_NAME), each.figures.get(name), each.differences.get(name)
    value = None if figure is None else with_interval(figure.value, figure.interval)
    if difference is None:
        return label, value, None, None
    above, below = ("better", "worse") if name == "label_accuracy" else ("higher", "lower")
    judged = {"unclear": "unclear", "better": above, "worse": below}[difference.verdict]
    return label, value, with_interval(difference.value, difference.interval, "+"), judged
