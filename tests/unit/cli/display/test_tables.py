"""Tables of results: the rows that matter first, no row that repeats another, verdicts, and 80 columns."""

from __future__ import annotations

import io
from dataclasses import replace

from rich.console import Console, RenderableType

from skill_ttrl.cli.display.output import text_table
from skill_ttrl.cli.display.tables import evaluation_view
from skill_ttrl.runs.summary import Summary
from skill_ttrl.stages.evaluation.results import Evaluation, TypeResult
from skill_ttrl.stages.reports.summary_text import closing_lines
from skill_ttrl.stages.reports.summary_text import summary_table as table_of

SUMMARY = Summary(
    "a", 0, "majority", False, 128, 8, 1.0,
    accuracy_before=0.5, accuracy_after=0.75, majority_before=0.9, majority_after=0.8,
    greedy_before=0.5, greedy_after=0.51, pass_at_k_before={"1": 0.5, "2": 0.6, "8": 0.9},
    pass_at_k_after={"1": 0.75, "2": 0.8, "8": 0.95}, entropy_before=1.0, entropy_after=0.5,
    intervals={
        "accuracy_before": (0.45, 0.55), "accuracy_after": (0.7, 0.8), "accuracy_change": (0.2, 0.3),
        "majority_change": (-0.15, -0.05), "greedy_change": (-0.1, 0.12),
    },
)  # fmt: skip


def shown(view: RenderableType, width: int = 80) -> str:
    out = io.StringIO()
    Console(file=out, width=width).print(view)
    assert max(map(len, out.getvalue().splitlines())) <= width
    return out.getvalue()


def summary_table(summary: Summary, *, full: bool = False) -> RenderableType:
    columns, rows, _ = table_of(summary, full=full)
    return text_table("", columns, rows)


def cells(text: str) -> dict[str, list[str]]:
    lines = [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.splitlines() if "│" in line]
    return {name: rest for name, *rest in lines}


def test_a_run_shows_its_headline_metrics_with_the_paired_change_and_a_verdict() -> None:
    rows = cells(shown(summary_table(SUMMARY)))
    assert rows == {
        "avg@8": ["0.500", "0.750", "+0.250 [+0.200, +0.300]", "better"],
        "maj@8": ["0.900", "0.800", "-0.100 [-0.150, -0.050]", "worse"],
        "greedy": ["0.500", "0.510", "+0.010 [-0.100, +0.120]", "unclear"],
        "pass@8": ["0.900", "0.950", "-", "-"],
    }
    assert any("maj@8 fell" in line for line in closing_lines(SUMMARY))


def test_all_rows_of_a_run_have_intervals_and_none_repeats_another() -> None:
    wide = cells(shown(summary_table(SUMMARY, full=True), width=160))
    assert wide["avg@8"][:2] == ["0.500 [0.450, 0.550]", "0.750 [0.700, 0.800]"]
    assert "pass@2" in wide and "pass@1" not in wide, "pass@1 is avg@8"
    assert "…" not in shown(summary_table(SUMMARY, full=True))


def test_an_evaluation_shows_what_matters_and_how_many_rows_more_there_are() -> None:
    kind = TypeResult(2, 0.5, (0.1, 0.9))
    found = Evaluation(
        "after", "test", 4, 4, 1.0, 0.5, (0.3, 0.7), {"1": 0.5, "2": 0.6, "4": 0.8}, 0.6, (0.4, 0.8), 0.55, (0.3, 0.8),
        {}, 0.7, 1.2, (), transductive=False, by_type={"a": kind, "b": kind},
    )  # fmt: skip
    text = shown(evaluation_view(found))
    assert list(cells(text)) == ["avg@4, T = 1", "maj@4", "greedy", "pass@4"] and "5 more rows: --full" in text
    full = shown(evaluation_view(found, full=True))
    assert {"pass@2", "avg@4 of a (2)", "majority ratio"} <= {*cells(full)} and "more rows" not in full
    assert "pass@1" not in cells(full)
    one = replace(found, samples=1, pass_at_k={"1": 0.5})
    assert list(cells(shown(evaluation_view(one)))) == ["avg@1, T = 1", "greedy"], "maj@1 and pass@1 are avg@1"
