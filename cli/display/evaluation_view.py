"""An evaluation on a screen."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

from skill_ttrl.cli.display.fitted import FittedTable
from skill_ttrl.cli.display.views import interval, number

if TYPE_CHECKING:
    from skill_ttrl.stages.evaluation.results import Evaluation
    from skill_ttrl.statistics import Interval

Row = tuple[str, str]


def evaluation_view(found: Evaluation, *, full: bool = False) -> RenderableType:
    """The metrics that matter most, or with `full` all of them, with intervals; the title says if the policy was trained on these
    problems.
    """
    from skill_ttrl.stages.evaluate import exposure

    where = f" of {found.source}" if found.source else f" ({found.split})"
    title = f"{found.label}: {found.problems} problems{where}, {exposure(found.transductive)}"
    main, rest = list(_main(found)), list(_rest(found))
    table = FittedTable(title, ("metric", "value"), [*main, *(rest if full else ())])
    more = [] if full or not rest else [Text(f"{len(rest)} more rows: --full", "dim")]
    return Group(table, *more)


def _main(found: Evaluation) -> Iterator[Row]:
    """The score, the headline metrics, the largest pass@k, failures, and the controls."""
    from skill_ttrl.stages.reports.summary_text import CONTROL

    several = found.samples > 1
    yield from _known(f"score, T = {found.temperature:g}", found.score, found.score_interval)
    yield _row(f"avg@{found.samples}, T = {found.temperature:g}", found.accuracy, found.accuracy_interval)
    if found.majority_ratio is not None and several:
        yield _row(f"maj@{found.samples}", found.majority, found.majority_interval)
    yield from _known("greedy", found.greedy, found.greedy_interval)
    if several and found.pass_at_k:
        yield _pass_at(found, max(found.pass_at_k, key=int))
    yield from _known("failed rollouts, counted as wrong", found.failed or None)
    yield from _known("rollouts with an attempted exploit", found.exploit_rate or None)
    for name, each in found.controls.items():
        yield _row(CONTROL.format(name), each.accuracy, each.interval)


def _rest(found: Evaluation) -> Iterator[Row]:
    """Everything else, without what repeats a main row: pass@1 is avg@1."""
    from skill_ttrl.stages.reports.summary_text import CONTROL, SKILL_USE

    avg = f"avg@{found.samples}"
    yield from _known("score, greedy", found.greedy_score, found.greedy_score_interval)
    largest = max(map(int, found.pass_at_k), default=1)
    for key in found.pass_at_k:
        if 1 < int(key) < largest:
            yield _pass_at(found, key)
    bounds = {name: each.interval for name, each in found.by_sampling.items()}
    for heat, value in found.by_temperature.items():
        yield _row(f"{avg}, T = {heat}", value, bounds.get(heat))
    yield from _known("majority ratio", found.majority_ratio)
    yield from _known("answer entropy (nats)", found.entropy)
    for name, each in found.controls.items():
        yield from _known(f"score, {CONTROL.format(name)}", each.score, each.score_interval)
    if found.no_controls:
        yield "controls", found.no_controls
    for key, label in SKILL_USE.items():
        yield from _known(label, found.skill_use.get(key))
    types = {f"{kind or 'other'} ({each.problems})": each for kind, each in found.by_type.items()}
    for kind, each in types.items():
        yield _row(f"{avg} of {kind}", each.accuracy, each.interval)
    for kind, each in types.items():
        yield from _known(f"score of {kind}", each.score, each.score_interval)
    for name, other in found.by_sampling.items():
        sampled = name if name == "greedy" else f"{avg}, T = {name}"
        for kind, each in other.by_type.items():
            yield _row(f"{sampled}, of {kind or 'other'} ({each.problems})", each.accuracy, each.interval)


def _pass_at(found: Evaluation, key: str) -> Row:
    return _row(f"pass@{key}", found.pass_at_k[key], found.pass_at_k_intervals.get(key))


def _row(label: str, value: float | None, bounds: Interval | None = None) -> Row:
    return label, number(value) + interval(bounds)


def _known(label: str, value: float | None, bounds: Interval | None = None) -> list[Row]:
    return [] if value is None else [_row(label, value, bounds)]
