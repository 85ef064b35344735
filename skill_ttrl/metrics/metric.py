"""Description of one metric, and of a section of them: plain data, and the tests of a name and of a value."""

from __future__ import annotations

import re
from dataclasses import dataclass

SHARE = ("share", "[0, 1]")
FLAG = ("0 or 1", "[0, 1]")
COUNT = ("count", "[0, ∞)")
TOKENS = ("tokens", "[0, ∞)")
SECONDS = ("seconds", "[0, ∞)")
REWARD = ("reward", "(-∞, ∞)")
NUMBER = ("", "(-∞, ∞)")
NOT_NEGATIVE = ("", "[0, ∞)")
NATS = ("nats", "[0, ∞)")
NATS_A_TOKEN = ("nats a token", "(-∞, ∞)")
"""Units with their ranges, as `Metric` takes them."""
ALWAYS = "always"

BOUND = r"(-?∞|-?\d+(?:\.\d+)?)"
INTERVAL = re.compile(rf"([\[(]){BOUND}, {BOUND}([\])])")


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
    logged: str = ALWAYS
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

    @property
    def description(self) -> str:
        """Unit, range and meaning in one line of Markdown, with signs of trouble and what to change."""
        scale = ", ".join(filter(None, (self.unit, self.range)))
        healthy = f"healthy: {self.healthy}" if self.healthy else ""
        help_text = " → ".join(filter(None, (self.trouble, self.change)))
        return "; ".join(filter(None, (f"{self.meaning} ({scale})", healthy, help_text)))

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


def contains(interval: str, value: float) -> bool:
    """Tell whether a value lies in an interval, written as in `Metric.range`.

    Raises:
        ValueError: the text is no interval.
    """
    found = INTERVAL.fullmatch(interval)
    if found is None:
        raise ValueError(f"{interval!r} is no interval such as [0, 1], (0, ∞) or (-∞, ∞).")
    opening, least, most, closing = found.groups()
    low, high = (float(bound.replace("∞", "inf")) for bound in (least, most))
    above = low < value or (opening == "[" and low == value)
    return above and (value < high or (closing == "]" and value == high))
