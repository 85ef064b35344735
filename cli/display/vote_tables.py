"""A voting comparison on a screen: strategies, their differences from the majority, and metrics by problem type."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from skill_ttrl.cli.display.fitted import FittedTable
from skill_ttrl.sanitize import escape_terminal

if TYPE_CHECKING:
    from skill_ttrl.stages.evaluation.vote_comparison import Replayed
    from skill_ttrl.stages.evaluation.vote_figures import Difference, Figure
    from skill_ttrl.stages.evaluation.vote_lab import VoteLab

COMPARED = ("label_accuracy", "reward_accuracy", "false_consensus", "majority_ratio", "flip_rate")
"""Figures whose difference from the majority is shown."""
NARROWEST, WIDEST = 9, 12
"""Columns of figures, in characters: an interval such as .812–.930 stays on one line."""
MAX_STRATEGIES = 5
"""Most strategies that are shown without `full`."""
MAX_NAME = 24
"""Longest name in a table in characters."""


def lab_view(lab: VoteLab, *, full: bool = False) -> RenderableType:
    """The best strategies, with the difference from the majority and its verdict; with `full` every metric, also by problem type."""
    from skill_ttrl.stages.evaluation.vote_lab import describe_samples

    judged = [each for each in lab.strategies if each.requires is None]
    parts: list[RenderableType] = [Text(escape_terminal(f"{lab.source}: {describe_samples(lab)}"), "bold"), Text()]
    parts += [*_full(lab, judged)] if full else [*_main(lab, judged)]
    missing = [
        Text(escape_terminal(f"{_name(each.strategy)} needs {each.requires}"), "yellow")
        for each in lab.strategies
        if each.requires
    ]
    parts += [Text(), *missing] if missing else []
    if lab.undecided_answers.count:
        parts += [Text(), Text(escape_terminal(str(lab.undecided_answers)), "yellow")]
    return Group(*parts)


def _full(lab: VoteLab, judged: Sequence[Replayed]) -> Iterator[RenderableType]:
    yield figures_table(judged)
    yield Text()
    if len(judged) > 1:
        yield differences_table(judged, lab.settings.confidence)
        yield Text()
    yield types_table(judged)


def _main(lab: VoteLab, judged: Sequence[Replayed]) -> Iterator[RenderableType]:
    """One metric: of the majority, and of the strategies that reach most in it; then the other metrics of the majority."""
    from skill_ttrl.statistics import PAIRED_TEST

    titles = _titles(judged)
    main = next(iter(titles))
    best = sorted(judged[1:], key=lambda each: -each.figures[main].value if main in each.figures else 0.0)
    shown = [judged[0], *best[: MAX_STRATEGIES - 1]]
    rows = [[_name(each.strategy), *_main_cells(each, main)] for each in shown]
    columns = ("strategy", titles[main], "less majority", "verdict") if len(judged) > 1 else ("strategy", titles[main])
    yield FittedTable("", columns, [row[: len(columns)] for row in rows])
    others = [(title, name) for name, title in titles.items() if name != main and name in judged[0].figures]
    said = ", ".join(f"{title} {judged[0].figures[name].value:.3f}" for title, name in others)
    if said:
        yield Text(escape_terminal(f"{_name(judged[0].strategy)}: {said}."))
    if len(judged) > 1:
        yield Text(f"Differences are paired by problem, with {lab.settings.confidence:.0%} intervals; {PAIRED_TEST}.")
    yield Text(f"{_hidden(judged, shown)}all metrics, also by problem type: --full", "dim")


def _hidden(judged: Sequence[Replayed], shown: Sequence[Replayed]) -> str:
    count = len(judged) - len(shown)
    return f"{count} more strategies, " if count else ""


def _main_cells(each: Replayed, name: str) -> tuple[str, str, str]:
    """A metric, its difference from the majority, and the verdict."""
    figure, difference = each.figures.get(name), each.differences.get(name)
    value = "-" if figure is None else f"{figure.value:.3f} [{figure.interval[0]:.3f}, {figure.interval[1]:.3f}]"
    if difference is None:
        return value, "-", "-"
    low, high = difference.interval
    above, below = ("better", "worse") if name == "label_accuracy" else ("higher", "lower")
    judged = {"unclear": "unclear", "better": above, "worse": below}[difference.verdict]
    return value, f"{difference.value:+.3f} [{low:+.3f}, {high:+.3f}]", judged


def figures_table(judged: Sequence[Replayed]) -> Table:
    """One row per strategy, each metric with its interval below it."""
    titles = _titles(judged) | {"decided_accuracy": "accuracy on decided prompts"}
    abstains = any(each.figures["abstained"].value > 0 for each in judged if "abstained" in each.figures)
    names = [name for name in _titles(judged) if name != "decided_accuracy" or abstains]
    rows = [(_name(each.strategy), [_figure(each.figures.get(name)) for name in names]) for each in judged]
    return _table("", ["strategy", *(titles[name] for name in names)], rows)


def differences_table(judged: Sequence[Replayed], confidence: float) -> Table:
    """Each strategy less the majority, over the same problems."""
    from skill_ttrl.statistics import PAIRED_TEST

    names = [name for name in _titles(judged) if name in COMPARED]
    rows = [
        (_name(each.strategy), [_difference(each.differences.get(name), _most(each.figures)) for name in names])
        for each in judged
        if each.differences
    ]
    title = f"Less majority, paired by problem, with {confidence:.0%} intervals; {PAIRED_TEST}"
    return _table(title, ["strategy", *(_titles(judged)[name] for name in names)], rows)


def types_table(judged: Sequence[Replayed]) -> Table:
    """One row a type of problem: all figures of one strategy, or the main figure of several."""
    titles = _titles(judged)
    main = next(iter(titles))
    if len(judged) == 1:
        names = [main, *(name for name in titles if name in COMPARED and name != main)]
        title, columns = "By problem type", [(titles[name], judged[0], name) for name in names]
    else:
        title, columns = (
            f"{titles[main].capitalize()} by problem type",
            [(_name(e.strategy), e, main) for e in judged],
        )
    rows = [
        (_typed(kind, judged[0].by_type[kind]), [_figure(each.by_type[kind].get(name)) for _, each, name in columns])
        for kind in sorted({kind for each in judged for kind in each.by_type})
    ]
    rows.append((_typed("all", judged[0].figures), [_figure(each.figures.get(name)) for _, each, name in columns]))
    return _table(title, ["type", *(head for head, _, _ in columns)], rows)


def _titles(judged: Sequence[Replayed]) -> dict[str, str]:
    """The figures that there are, the main one first, with what they are called."""
    from skill_ttrl.stages.evaluation.vote_lab import TITLES

    return {name: title for name, title in TITLES.items() if any(name in each.figures for each in judged)}


def _table(title: str, columns: Sequence[str], rows: Sequence[tuple[str, Sequence[Text]]]) -> Table:
    """Texts only: nothing in a name is read as markup."""
    table = Table(
        title=Text(escape_terminal(title), "table.title") if title else None,
        title_justify="left",
        box=box.SIMPLE_HEAD,  # seven figures stand side by side in 80 columns
        show_edge=False,
        padding=0,
    )
    for place, column in enumerate(columns):
        head = Text(escape_terminal(column))
        if place == 0:
            table.add_column(head, overflow="fold", min_width=NARROWEST + 1)
        else:
            width = max(NARROWEST, *(min(len(word), WIDEST) for word in head.plain.split() or [""]))
            table.add_column(head, justify="right", overflow="fold", width=width)
    for name, cells in rows:
        table.add_row(Text(escape_terminal(name)), *cells)
    return table


def _figure(figure: Figure | None) -> Text:
    if figure is None:
        return Text("-")
    low, high = figure.interval
    return Text(f"{figure.value:.3f}\n").append(f"{_short(low)}–{_short(high)}", "dim")


def _difference(difference: Difference | None, problems: int) -> Text:
    if difference is None:
        return Text("-")
    if difference.value == 0 and difference.interval == (0, 0):
        return Text("0\n").append("unclear", "yellow")
    low, high = difference.interval
    text = Text(f"{difference.value:+.3f}\n").append(f"{low:+.3f}\n{high:+.3f}", "dim")
    if difference.verdict == "unclear":
        text.append("\nunclear", "yellow")
    return text.append(f"\nn = {difference.problems}", "dim") if difference.problems < problems else text


def _short(value: float) -> str:
    """Three decimals of a share without what can be spared."""
    return {"0.000": "0", "1.000": "1"}.get(text := f"{value:.3f}", text.removeprefix("0"))


def _typed(kind: str, figures: Mapping[str, Figure]) -> str:
    return f"{_name(kind or 'other')} ({_most(figures)})"


def _most(figures: Mapping[str, Figure]) -> int:
    return max(figure.problems for figure in figures.values())


def _name(text: str) -> str:
    return text if len(text) <= MAX_NAME else text[: MAX_NAME - 1] + "…"
