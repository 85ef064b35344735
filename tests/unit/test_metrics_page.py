"""docs/metrics.md is that of the registry."""

from __future__ import annotations

import runpy
from pathlib import Path

from skill_ttrl.metrics import METRICS

DOCS = Path(__file__).parents[2] / "docs"


def test_metrics_page_is_that_of_the_registry() -> None:
    page = (DOCS / "metrics.md").read_text(encoding="utf-8")
    made = runpy.run_path(str(DOCS / "generate_metrics.py"))["metrics_page"]()
    assert page == made, "run: python docs/generate_metrics.py"
    assert page.count("\n| `") == len(METRICS)
