"""The result of a training run on a screen: before and after, and the lines under the table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from skill_ttrl.cli.display.fitted import FittedTable
from skill_ttrl.cli.display.views import interval, number, signed

if TYPE_CHECKING:
    from skill_ttrl.runs.summary import Summary


def summary_table(summary: Summary, *, full: bool = False) -> FittedTable:
    """Before and after, the paired change with its interval, and its verdict; `full`: every metric, with intervals."""
    from skill_ttrl.stages.reports.summary_text import (
        CONTROL,
        distinct_rows,
        learned_by,
        main_rows,
        summary_changes,
        summary_intervals,
    )
    from skill_ttrl.statistics import verdict

    changes, bounds, main = summary_changes(summary), summary_intervals(summary), main_rows(summary)
    for name in {**summary.controls_before, **summary.controls_after}:
        for when in ("before", "after"):
            if found := summary.intervals.get(f"control_{name}_{when}"):
                bounds[CONTROL.format(name), when] = found
    rows = []
    for label, before, after in distinct_rows(summary):
        if not full and label not in main:
            continue
        shown = {
            when: interval(bounds.get((label, when))) if full or not changes else "" for when in ("before", "after")
        }
        cells = [label, number(before) + shown["before"], number(after) + shown["after"]]
        if changes:
            change = changes.get(label)
            cells += ["-", "-"] if change is None else [signed(*change), verdict(change[1])]
        rows.append(cells)
    tasks = "training tasks (transductive)" if summary.transductive else "held-out tasks"
    where = f" of {summary.measured_on}" if summary.measured_on else ""
    trained = f", trained on {summary.trained_on}" if summary.trained_on != summary.measured_on else ""
    title = f"{summary.name}: {summary.problems} {tasks}{where}{trained}; {learned_by(summary)}, seed {summary.seed}"
    columns = ("metric", "before", "after", *(("change", "verdict") if changes else ()))
    return FittedTable(title, columns, rows)


def closing_lines(summary: Summary, baseline: Sequence[str] = (), *, full: bool = False) -> list[str]:
    """Lines under the table: the gain of the skills, the vote, the baseline (`baseline_lines`), wall times, cost, warnings."""
    from skill_ttrl.llm.openai.ledger import usage_lines
    from skill_ttrl.stages.reports.summary_text import (
        algorithm_lines,
        change_lines,
        skill_lines,
        summary_changes,
        vote_line,
    )
    from skill_ttrl.statistics import PAIRED_TEST, verdict

    lines = [*(algorithm_lines(summary) if full else ())]
    if summary_changes(summary):
        lines.append(
            f"Change = after − before, paired by problem, with {summary.confidence:.0%} intervals; {PAIRED_TEST}."
        )
    lines += [text for text in change_lines(summary) if text.startswith("Warning")]
    gain = summary.intervals.get("skill_gain")
    if gain and summary.accuracy_after is not None and summary.accuracy_no_skills is not None:
        difference = summary.accuracy_after - summary.accuracy_no_skills
        lines.append(f"Gain of the skill bank: {signed(difference, gain)}, paired by problem: {verdict(gain)}.")
    lines += [text for text in (vote_line(summary),) if text is not None]
    lines += skill_lines(summary) if full else []
    lines += [f"Controls: {summary.no_controls}."] if summary.no_controls else []
    lines += [*([summary.stopped] if summary.stopped else []), *baseline]
    phases = {name: seconds for name, seconds in summary.seconds.items() if "." not in name}
    if phases:
        lines.append("Wall time: " + ", ".join(f"{name} {seconds:.1f} s" for name, seconds in phases.items()) + ".")
    lines += [f"{text[0].upper()}{text[1:]}." for text in usage_lines(summary.usage)]
    return [*lines, *(f"Warning: {text}" for text in summary.warnings)]
