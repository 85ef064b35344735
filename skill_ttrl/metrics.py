"""The metrics that a run logs: `metrics.toml` describes each, and this module looks them up by name.

The tests fail where a run logs a metric that the file does not have.
"""

from __future__ import annotations

import importlib.resources
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_BOUND = r"(-?∞|-?\d+(?:\.\d+)?)"
_INTERVAL = re.compile(rf"([\[(]){_BOUND}, {_BOUND}([\])])")


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric of `metrics.jsonl` or `timings.jsonl`. Texts are phrases without a full stop; Markdown code marks names in them."""

    name: str
    """Name without its phase; `<…>` stands for a name of any kind."""
    unit: str
    """Empty for a plain number."""
    range: str
    """Interval of all possible values, `[0, 1]`, `(-∞, ∞)`: a round bracket leaves its bound out."""
    meaning: str
    logged: str = "always"
    """Runs and steps that have it."""
    healthy: str = ""
    """Interval outside of which the value is a sign of trouble; empty where no bound is known."""
    trouble: str = ""
    """Sign of trouble: the values, and what they mean."""
    change: str = ""
    """Settings to change, or where to look, when there is trouble."""

    @property
    def pattern(self) -> re.Pattern[str]:
        """Matches the names of this metric."""
        return re.compile(re.sub(r"<\w+>", "[^/]+", re.escape(self.name)))

    def is_healthy(self, value: float) -> bool:
        """Tell whether a value is no sign of trouble; True where no bound is known."""
        return not self.healthy or contains(self.healthy, value)


@dataclass(frozen=True, slots=True)
class Section:
    """Metrics that a reader looks up together."""

    title: str
    text: str
    """Paragraph above the table, in Markdown with links of `docs/`; may be empty."""
    metrics: tuple[Metric, ...]


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

    def in_words(self) -> str:
        """What is wrong, what it means and what to change, without Markdown."""
        text = f"{self.name} is {self.value:.4g}, healthy {self.healthy}: {self.meaning}. Trouble: {self.trouble}. Change: {self.change}."
        return text.replace("`", "")


def _read() -> tuple[Section, ...]:
    text = importlib.resources.files("skill_ttrl").joinpath("metrics.toml").read_text(encoding="utf-8")
    return tuple(
        Section(each["title"], each.get("text", ""), tuple(Metric(**metric) for metric in each["metric"]))
        for each in tomllib.loads(text)["section"]
    )


SECTIONS = _read()
METRICS: tuple[Metric, ...] = tuple(metric for section in SECTIONS for metric in section.metrics)
_BY_NAME = {metric.name: metric for metric in METRICS}
_PATTERNS = [(metric.pattern, metric) for metric in METRICS if "<" in metric.name]


def contains(interval: str, value: float) -> bool:
    """Tell whether a value lies in an interval, written as in `Metric.range`.

    Raises:
        ValueError: the text is no interval.
    """
    found = _INTERVAL.fullmatch(interval)
    if found is None:
        raise ValueError(f"{interval!r} is no interval such as [0, 1], (0, ∞) or (-∞, ∞).")
    opening, least, most, closing = found.groups()
    low, high = (float(bound.replace("∞", "inf")) for bound in (least, most))
    above = low < value or (opening == "[" and low == value)
    return above and (value < high or (closing == "]" and value == high))


def bounds(interval: str) -> tuple[float | None, float | None]:
    """The ends of an interval, written as in `Metric.range`; None for an infinite one, and both of a text that is no interval."""
    found = _INTERVAL.fullmatch(interval)
    ends = [None, None] if found is None else [None if "∞" in each else float(each) for each in found.group(2, 3)]
    return ends[0], ends[1]


def find(name: str) -> Metric | None:
    """Look a metric up by a name without its phase; None where there is none. An exact name goes before a pattern."""
    return _BY_NAME.get(name) or next((metric for pattern, metric in _PATTERNS if pattern.fullmatch(name)), None)


def unhealthy(row: Mapping[str, Any]) -> list[UnhealthyMetric]:
    """Metrics of a line of `metrics.jsonl` that are outside of their healthy ranges, in the order of `metrics.toml`."""
    found = [
        (metric, name, float(value))
        for name, value in row.items()
        if isinstance(value, int | float) and (metric := find(name)) is not None and not metric.is_healthy(value)
    ]
    return [
        UnhealthyMetric(
            str(row["phase"]), int(row["step"]), name, value, each.healthy, each.meaning, each.trouble, each.change
        )
        for each, name, value in sorted(found, key=lambda one: METRICS.index(one[0]))
    ]
