"""docs/metrics.md, as `make docs` makes it."""

from __future__ import annotations

import runpy
from pathlib import Path

from skill_ttrl.metrics import METRICS

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_has_a_row_for_each_metric() -> None:
    page = runpy.run_path(str(DOCS / "generate_metrics.py"))["metrics_page"]()
    assert page.count("\n| `") == len(METRICS)
