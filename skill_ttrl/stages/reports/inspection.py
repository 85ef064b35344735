"""The result of `skillttrl inspect` for one path, and the formatting of table cells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from skill_ttrl.metrics import UnhealthyMetric
from skill_ttrl.statistics import Interval
from skill_ttrl.types import Skill

MAX_CELL = 80
"""Longest text of a cell in characters."""


@dataclass(frozen=True, slots=True)
class Inspection:
    """Findings at a path."""

    kind: str
    """run, runs, seeds, optimization, checkpoint, samples, evaluation, records; of a skill bank: bank, history or search; skills of a file."""
    path: str
    facts: dict[str, Any] = field(default_factory=dict)
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[Any]] = ()
    notes: Sequence[str] = ()
    skills: Sequence[Skill] = ()
    """Of a bank, a search or a file of skills: all of them, whole; the first `len(rows)` are those to show."""
    main_facts: Sequence[str] = ()
    """Facts that matter most; empty: all."""
    main_rows: int | None = None
    """Number of rows that matter most, which come first; None: all."""
    unhealthy: Sequence[UnhealthyMetric] = ()
    """Of a run: metrics of its latest step that are outside of their healthy ranges."""


def short(value: Any) -> Any:
    """A value as a cell: three decimals, and a long text cut."""
    if isinstance(value, float):
        return f"{value:z.3f}"
    text = str(value) if value is not None else None
    return text if text is None or len(text) <= MAX_CELL else text[: MAX_CELL - 1] + "…"


def with_interval(value: Any, bounds: Interval | None = None, sign: str = "") -> Any:
    """A metric with its interval, where it has one; `sign` "+": a difference."""
    if not isinstance(value, float) or not bounds:
        return short(value)
    return f"{value:{sign}.3f} [{bounds[0]:{sign}.3f}, {bounds[1]:{sign}.3f}]"
