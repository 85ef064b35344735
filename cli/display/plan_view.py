"""View of `skillttrl plan`: five rows that matter, memory by rank, and with `--full` all that was simulated."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from skill_ttrl.sanitize import escape_terminal

if TYPE_CHECKING:
    from skill_ttrl.stages.plan import ClusterPlan
    from skill_ttrl.stages.planning.memory import RankMemory

SMALL = 5e7
"""Parts of memory below so many bytes are in `--full` alone."""


def cluster_view(found: ClusterPlan, *, full: bool = False) -> RenderableType:
    """Show a plan."""
    machines = f" in {found.nodes} machines" if found.nodes > 1 else ""
    shared = (
        f"{found.rollout_gpus} generate, {found.learner_gpus} learn" if found.rollout_gpus else "all generate and learn"
    )
    title = (
        f"{found.name}: {found.model}, {found.parameters:,} parameters, {found.gpus} x {found.gpu}{machines} ({shared})"
    )
    parts: list[RenderableType] = [Text(escape_terminal(title), "bold"), Text(), _first_rows(found), Text()]
    parts += [_memory(found.memory, full=full)]
    if full:
        parts += [Text(), _parts(found), Text(), _changes(found)]
    shown = found.assumptions if full else found.assumptions[:4]
    parts += [Text(), *(Text(escape_terminal(f"- {each}")) for each in shown)]
    if hidden := 0 if full else len(found.changes) + len(found.assumptions) - len(shown):
        parts.append(Text(f"{hidden} more rows: --full", "dim"))
    return Group(*parts)


def _first_rows(found: ClusterPlan) -> Table:
    cost = "" if found.cost is None else f", cost {found.cost:,.2f}"
    rows = (
        (
            "step",
            f"{_seconds(found.step_seconds)}, {found.tokens['sampled']:,.0f} tokens sampled, {found.tokens['trained']:,.0f} trained",
        ),
        ("throughput", f"{found.tokens_per_second:,.0f} tokens/s, {found.rollouts_per_second:.3g} rollouts/s"),
        (
            "time",
            f"{_hours(found.hours)} for {found.steps:,} steps, {found.tokens['sampled_in_all']:,.0f} tokens sampled",
        ),
        ("GPU hours", f"{found.gpu_hours:,.2f}{cost}" if found.gpu != "cpu" else f"none: a CPU{cost}"),
        ("bottleneck", f"{found.bottleneck}. Change: {found.advice}"),
    )
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, text in rows:
        table.add_row(name, Text(escape_terminal(text)))
    return table


def _memory(ranks: Sequence[RankMemory], *, full: bool) -> Table:
    """A row for each part, a column for each kind of rank."""
    table = _table("memory of each rank, GB", [f"{each.role}\nrank {each.ranks}" for each in ranks])
    names = dict.fromkeys(name for each in ranks for name in each.parts)
    for name in names:
        sizes = [each.parts.get(name, 0) for each in ranks]
        if full or max(sizes) >= SMALL:
            table.add_row(name, *(f"{size / 1e9:.2f}" if size else "" for size in sizes))
    fits = ["fits" if each.fits else "does not fit" for each in ranks]
    sums = [
        f"{each.peak / 1e9:.2f} of {each.available / 1e9:.2f}: {word}" for each, word in zip(ranks, fits, strict=True)
    ]
    table.add_row("peak", *sums, style="bold")
    return table


def _parts(found: ClusterPlan) -> Table:
    table = _table("part of a step", ["seconds alone", "share of the time"])
    for name, seconds in found.parts.items():
        table.add_row(name, _seconds(seconds), f"{found.utilisation[name]:.0%}")
    table.add_row("mean staleness, steps", f"{found.staleness:.2g}", "")
    return table


def _changes(found: ClusterPlan) -> Table:
    table = _table("one setting changed", ["s a step", "tasks/s", "bottleneck", "effect"])
    for each in found.changes:
        table.add_row(
            escape_terminal(each.setting),
            _seconds(each.step_seconds),
            f"x {each.gain:.2f}",
            each.bottleneck,
            each.effect if each.fits else "does not fit",
        )
    return table


def _table(first: str, columns: Iterable[str]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column(first, overflow="fold")
    for column in columns:
        table.add_column(column, justify="right")
    return table


def _seconds(seconds: float) -> str:
    return f"{seconds:,.0f} s" if seconds >= 100 else f"{seconds:.3g} s"


def _hours(hours: float) -> str:
    minutes = hours * 60
    return f"{hours:,.1f} h" if minutes >= 60 else f"{minutes:.1f} min"
