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

Metric = tuple[str, float | None, "Interval | None"]


def evaluation_view(found: Evaluation, *, full: bool = False) -> RenderableType:
    """The metrics that matter most, or with `full` all of them, with intervals; the title says if the policy was trained on these
    problems.
    """
    from skill_ttrl.stages.evaluate import exposure

    where = f" of {found.source}" if found.source else f" ({found.split})"
    title = f"{found.label}: {found.problems} problems{where}, {exposure(found.transductive)}"
    main = [metric for metric in _main(found) if metric[1] is not None]
    rest = [metric for metric in _rest(found) if metric[1] is not None]
    rows = [(name, number(value) + interval(bounds)) for name, value, bounds in [*main, *(rest if full else ())]]
    notes = [f"Controls: {found.no_controls}."] if found.no_controls else []
    notes += [] if full or not rest else [f"{len(rest)} more rows: --full"]
    return Group(FittedTable(title, ("metric", "value"), rows), *(Text(note, "dim") for note in notes))


def _main(found: Evaluation) -> Iterator[Metric]:
    """The score, the headline metrics, the largest pass@k, failures, and the controls. With one sample maj@1 and pass@1 are avg@1."""
    from skill_ttrl.stages.reports.summary_text import CONTROL

    several, heat = found.samples > 1, f", T = {found.temperature:g}"
    yield f"score{heat}", found.score, found.score_interval
    yield f"avg@{found.samples}{heat}", found.accuracy, found.accuracy_interval
    yield f"maj@{found.samples}", found.majority if several else None, found.majority_interval
    yield "greedy", found.greedy, found.greedy_interval
    if several and found.pass_at_k:
        largest = max(found.pass_at_k, key=int)
        yield f"pass@{largest}", found.pass_at_k[largest], found.pass_at_k_intervals.get(largest)
    yield "failed rollouts, counted as wrong", found.failed or None, None
    yield "rollouts with an attempted exploit", found.exploit_rate or None, None
    for name, each in found.controls.items():
        yield CONTROL.format(name), each.accuracy, each.interval


def _rest(found: Evaluation) -> Iterator[Metric]:
    from skill_ttrl.stages.reports.summary_text import CONTROL, SKILL_USE

    yield "score, greedy", found.greedy_score, found.greedy_score_interval
    largest = max(map(int, found.pass_at_k), default=1)
    for key in found.pass_at_k:
        if 1 < int(key) < largest:
            yield f"pass@{key}", found.pass_at_k[key], found.pass_at_k_intervals.get(key)
    yield "majority ratio", found.majority_ratio, None
    yield "answer entropy (nats)", found.entropy, None
    for name, each in found.controls.items():
        yield f"score, {CONTROL.format(name)}", each.score, each.score_interval
    for key, label in SKILL_USE.items():
        yield label, found.skill_use.get(key), None
    avg = f"avg@{found.samples}"
    sampled = {"": found.by_type, **{name: each.by_type for name, each in found.by_sampling.items()}}
    for name, other in found.by_sampling.items():
        if name != "greedy":
            yield f"{avg}, T = {name}", other.accuracy, other.interval
    for name, types in sampled.items():
        how = name if name in ("", "greedy") else f"T = {name}"
        for kind, each in types.items():
            where = f"of {kind or 'other'} ({each.problems})"
            yield f"{how}, {where}" if how else f"{avg} {where}", each.accuracy, each.interval
            yield f"score {where}", each.score if not how else None, each.score_interval
