"""All sections and metrics, and the lookup by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from skill_ttrl.metrics.algorithms import ALGORITHMS
from skill_ttrl.metrics.corrections import CORRECTIONS
from skill_ttrl.metrics.episodes import EPISODES
from skill_ttrl.metrics.evaluations import EVALUATE, EVALUATIONS
from skill_ttrl.metrics.metric import Metric, Section
from skill_ttrl.metrics.rollouts import ROLLOUTS
from skill_ttrl.metrics.skills import SKILLS
from skill_ttrl.metrics.timings import TIMINGS
from skill_ttrl.metrics.update import UPDATE
from skill_ttrl.metrics.votes import VOTES

SECTIONS: tuple[Section, ...] = (
    ROLLOUTS,
    VOTES,
    EPISODES,
    SKILLS,
    UPDATE,
    ALGORITHMS,
    CORRECTIONS,
    TIMINGS,
    EVALUATIONS,
)
METRICS: tuple[Metric, ...] = tuple(metric for section in SECTIONS for metric in section.metrics)
_BY_NAME = {metric.name: metric for metric in METRICS}
_PATTERNS = [(metric.pattern, metric) for metric in METRICS if "<" in metric.name]


@dataclass(frozen=True, slots=True)
class UnhealthyMetric:
    """A metric whose value at one step is outside of its healthy range."""

    phase: str
    step: int
    name: str
    value: float
    healthy: str
    meaning: str
    trouble: str
    change: str


def find(name: str) -> Metric | None:
    """Look a metric up by a name without its phase; None where it is not registered. An exact name goes before a pattern."""
    return _BY_NAME.get(name) or next((metric for pattern, metric in _PATTERNS if pattern.fullmatch(name)), None)


def find_tracked(name: str) -> Metric | None:
    """Look a metric up by its name in a tracker, `phase/name`; None where it is not registered."""
    phase, _, own = name.partition("/")
    evaluated = find(f"{EVALUATE}{own}") if phase.startswith("evaluate") else None
    return evaluated or find(own)


def unregistered(names: Iterable[str]) -> list[str]:
    """Names that the registry does not have."""
    return sorted(name for name in names if find(name) is None)


def unhealthy(row: Mapping[str, Any]) -> list[UnhealthyMetric]:
    """Metrics of a line of `metrics.jsonl` that are outside of their healthy ranges, in the order of the registry."""
    found = [
        (metric, name, float(value))
        for name, value in row.items()
        if isinstance(value, int | float) and (metric := find(name)) is not None and not metric.is_healthy(value)
    ]
    return [
        UnhealthyMetric(
            str(row["phase"]),
            int(row["step"]),
            name,
            value,
            metric.healthy,
            metric.meaning,
            metric.trouble,
            metric.change,
        )
        for metric, name, value in sorted(found, key=lambda each: METRICS.index(each[0]))
    ]
