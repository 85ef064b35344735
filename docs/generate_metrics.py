"""Writes docs/metrics.md from skill_ttrl/metrics.toml, for the site (`make docs`)."""

from __future__ import annotations

from skill_ttrl.metrics import SECTIONS, Metric, Section

OPENING = """\
# Every metric

**What you get.** The name, the unit, the range and the meaning of every number in a run's `metrics.jsonl` and `timings.jsonl`, one line of
either for each step; and, where they are known, the values that are a sign of trouble and what to change. A tracker has the same names behind
the phase (`rl/reward`). The test suite fails where a run logs a metric that is not here (`tests/integration/conftest.py`).

```console
$ skillttrl inspect runs/quickstart                        # before and after, what the run says, and metrics of the latest step to look at
$ xdg-open runs/quickstart/report.html                     # curves
$ tail -1 runs/quickstart/metrics.jsonl | python -m json.tool
```

Shares lie in [0, 1]. *Tokens* are trained ones, each weighing the same, unless a row says otherwise. `<…>` stands for a name. A metric that
makes no sense for a run, or for one step of it, is absent; a number that was not finite is `null`. `skillttrl inspect RUN` names the metrics
of the latest step that are outside of the range under *healthy*; where that column is empty no bound is known.
"""


def metrics_page() -> str:
    """The page's text."""
    return "\n".join([OPENING, *map(_table, SECTIONS)])


def _table(section: Section) -> str:
    heading = [f"## {section.title}", "", *([section.text, ""] if section.text else [])]
    head = [
        "| metric | unit, range | meaning | logged | healthy | trouble, and what to change |",
        "|---|---|---|---|---|---|",
    ]
    return "\n".join([*heading, *head, *map(_row, section.metrics), ""])


def _row(metric: Metric) -> str:
    scale = ", ".join(filter(None, (metric.unit, metric.range)))
    help_text = " → ".join(filter(None, (metric.trouble, metric.change)))
    cells = (f"`{metric.name}`", scale, metric.meaning, metric.logged, metric.healthy, help_text)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
