"""The metrics that docs/metrics.md has in its tables."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "metrics.md"


@cache
def documented() -> re.Pattern[str]:
    """Matches each name in the first cell of a row; `<…>` stands for a name of any kind."""
    cells = [line.split("|")[1] for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    names = [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]
    return re.compile("|".join(re.sub(r"<\w+>", "[^/]+", re.sub(r"([@.])", r"\\\1", name)) for name in names))


def undocumented(names: Iterable[str]) -> list[str]:
    """Names of metrics that the page does not have."""
    return sorted(name for name in names if not documented().fullmatch(name))
