"""The page of an optimization: its outcome, a chart of its scores, and the document's history as differences, in one HTML file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import Any

from skill_ttrl.sanitize import escape_terminal
from skill_ttrl.stages.reports.document_diff import DocumentDiff, diff_documents
from skill_ttrl.stages.reports.html import render_report
from skill_ttrl.stages.reports.optimize_history import HistoryStep, OptimizeHistory, read_history
from skill_ttrl.statistics import mean_interval, paired_difference
from skill_ttrl.storage.files import wrap_os_errors, write_atomic

REPORT = "report.html"
CONFIDENCE = 0.95
LEFT, TOP, RIGHT, BOTTOM = 56, 16, 880, 236
"""Where the axes of the chart stand, in pixels."""
TICKS = 4
SMALLEST_SPAN = 0.1
"""Of the axis of scores: a smaller difference is not drawn as a large one."""
GATE = {
    "accept_new_best": "accepted, new best",
    "accept": "accepted",
    "force_accept": "accepted without the gate",
    "reject": "rejected",
    "reject_too_long": "rejected, too long",
    "skip_no_patches": "skipped: no edits",
    "skip_no_budget": "skipped: a budget of no edits",
    "skip_no_rewrite": "skipped: no document was written",
    "skip_no_change": "skipped: the candidate says what the document says",
    "no_pairs": "nothing to compare",
    "no_content": "nothing was written",
}


def write_optimize_html(path: Path) -> Path:
    """Write `report.html` into the folder of an optimization.

    Raises:
        RunFolderError: it is none, a file in it cannot be read, or it cannot be written.
    """
    page = optimize_html(read_history(path))
    with wrap_os_errors("write", path / REPORT):
        write_atomic(path / REPORT, page.encode())
    return path / REPORT


def optimize_html(history: OptimizeHistory) -> str:
    """The page as one HTML document. What models wrote is text there: it is escaped, and characters that act and do not show are left out."""
    summary = history.summary or {}
    name = summary.get("name") or summary.get("env") or history.path.name
    return render_report(
        "optimize",
        f"Optimization {_clean(name)}",
        facts=_facts(history),
        outcome=_outcome(history),
        chart=score_chart(history),
        counts=_counts(history),
        steps=[_step(step) for step in history.steps],
        first_is_known=history.first is not None,
        best=_clean(history.best),
        best_step=history.state.get("best_step", 0),
        work=[(_clean(stage), dict(each)) for stage, each in history.work.items()],
        spending=[_clean(f"{text[0].upper()}{text[1:]}.") for text in history.spending],
    )


def score_chart(history: OptimizeHistory) -> dict[str, Any]:
    """Scores on the selection items by step: current and best as lines, candidates as marks; all in pixels."""
    rows = [step.row for step in history.steps]
    first = _first_score(history)
    current = [first, *(_number(row.get("current_score")) for row in rows)]
    best = [first, *(_number(row.get("best_score")) for row in rows)]
    candidates = [(int(row["step"]), _candidate_score(row), row) for row in rows]
    values = [value for value in (*current, *best, *(score for _, score, _ in candidates)) if value is not None]
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    if high - low < SMALLEST_SPAN:
        middle = (low + high) / 2
        low, high = middle - SMALLEST_SPAN / 2, middle + SMALLEST_SPAN / 2
    last = max([1, *(step for step, _, _ in candidates)])

    def x(step: float) -> float:
        return round(LEFT + (RIGHT - LEFT) * step / last, 1)

    def y(score: float) -> float:
        return round(BOTTOM - (BOTTOM - TOP) * (score - low) / (high - low), 1)

    def line(scores: Sequence[float | None]) -> str:
        """Stairs: a score holds until the step that changes it."""
        known = [(step, score) for step, score in enumerate(scores) if score is not None]
        corners = [(step, score) for (_, score), (step, _) in pairwise(known)]
        return " ".join(
            f"{x(step)},{y(score)}" for pair in zip_longest(known, corners) for step, score in filter(None, pair)
        )

    marks = []
    for step, score, row in candidates:
        action = str(row.get("action", ""))
        kind = "accepted" if action.startswith("accept") else "skipped" if action.startswith("skip") else "rejected"
        said = f"step {step}: {_gate(action)}" + (f", candidate {score:.4f}" if score is not None else "")
        marks.append({"x": x(step), "y": y(score if score is not None else low), "kind": kind, "title": said})
    ticks = [low + (high - low) * place / TICKS for place in range(TICKS + 1)]
    return {
        "box": {"left": LEFT, "top": TOP, "right": RIGHT, "bottom": BOTTOM},
        "current": line(current),
        "best": line(best),
        "marks": marks,
        "ticks": [{"y": y(value), "label": f"{value:.3f}"} for value in ticks],
        "last": last,
    }


def _step(step: HistoryStep) -> dict[str, Any]:
    row = step.row
    rejected = step.candidate is not None and not step.accepted
    diff = None if step.candidate is None else diff_documents(step.before, step.candidate)
    epoch = None if step.epoch is None else _epoch(step)
    return {
        "number": step.number,
        "epoch": row.get("epoch"),
        "action": _gate(row.get("action", "")),
        "kind": "accepted" if step.accepted else "rejected" if rejected else "skipped",
        "reason": _clean(row.get("reason", "")),
        "numbers": _numbers(row),
        "edits": [_edit(each) for each in step.edits],
        "diff": _shown(diff),
        "open": step.accepted,
        "epoch_end": epoch,
    }


def _epoch(step: HistoryStep) -> dict[str, Any]:
    """The end of an epoch: the guidance that was written, and what it changed in the document."""
    row = step.epoch or {}
    return {
        "number": row.get("epoch"),
        "action": _gate(row.get("action", "")),
        "reason": _clean(row.get("reason", "")),
        "content": _clean(row.get("slow_update_content") or ""),
        "diff": _shown(diff_documents(step.behind_step, step.after)),
    }


def _shown(diff: DocumentDiff | None) -> DocumentDiff | None:
    return diff or None


def _edit(edit: Mapping[str, Any]) -> dict[str, str]:
    status = str(edit.get("status", ""))
    return {
        "op": _clean(edit.get("op", "")),
        "target": _clean(edit.get("target", "")),
        "content": _clean(edit.get("content") or edit.get("content_preview", "")),
        "support": str(edit.get("support_count") or ""),
        "source": _clean(edit.get("source_type") or ""),
        "status": _clean(status.replace("_", " ")),
        "kind": "applied" if status.startswith("applied") else "not-applied",
    }


def _numbers(row: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Figures of a step, with their names."""
    found = [("rollouts", f"{row.get('rollout_n', 0)}, success {_decimal(row.get('rollout_hard'))}")]
    failures, successes = row.get("n_failure_patches", 0), row.get("n_success_patches", 0)
    if failures or successes:
        found.append(("patches", f"{failures} of failures, {successes} of successes"))
    if (merged := row.get("n_edits_merged")) is not None:
        budget = "" if row.get("edit_budget") is None else f" (budget {row['edit_budget']})"
        found.append(("edits", f"{merged} merged, {row.get('n_edits_ranked', 0)} selected{budget}"))
    if "selection_hard" in row:
        found.append(("candidate", _evaluated(row)))
    found.append(("behind it", f"current {_decimal(row.get('current_score'))}, best {_decimal(row.get('best_score'))}"))
    if fallbacks := row.get("fallbacks"):
        found.append(("unusable answers", ", ".join(f"{_clean(name)} {count}" for name, count in fallbacks.items())))
    return found


def _evaluated(row: Mapping[str, Any]) -> str:
    """The evaluation of a candidate. Of one that ended early the mean says nothing, so it is not shown."""
    known = ", known from before" if row.get("selection_cached") else ""
    if not row.get("selection_whole", True):
        return f"evaluation ended early, after {row.get('selection_n', 0)} items{known}"
    return f"{_decimal(row['selection_hard'])} on {row.get('selection_n', 0)} items{known}"


def _facts(history: OptimizeHistory) -> list[str]:
    """Policy, optimizer and task, in a line."""
    found = history.summary or {}
    facts = [
        f"{name}: {_clean(found[name])}"
        for name in ("policy", "environment", "env", "engine", "optimizer", "seed")
        if name in found
    ]
    if isinstance(found.get("items"), Mapping):
        facts.append("items: " + ", ".join(f"{_clean(role)} {count}" for role, count in found["items"].items()))
    if not found:
        facts.append("This run has not ended: the page shows what is finished.")
    return facts


def _outcome(history: OptimizeHistory) -> list[dict[str, str]]:
    """Scores of the first and the best document with their intervals."""
    rows = []
    if history.baseline:
        first = _interval([float(each.get("hard", 0)) for each in history.baseline])
        best = _decimal(history.state.get("best_score"))
        rows.append({"name": "selection (chose the document: optimistic)", "first": first, "best": best, "change": ""})
    if history.tests is not None:
        before, after = ([float(each.get("hard", 0)) for each in part] for part in history.tests)
        change = ""
        if len(before) == len(after):
            difference, low, high = paired_difference(before, after, confidence=CONFIDENCE)
            change = f"{difference:+.3f} [{low:+.3f}, {high:+.3f}], paired over {len(after)} items"
        rows.append({"name": "test", "first": _interval(before), "best": _interval(after), "change": change})
    return rows


def _counts(history: OptimizeHistory) -> str:
    steps = history.steps
    accepted = sum(step.accepted for step in steps)
    tried = sum(step.candidate is not None for step in steps)
    applied = sum(_edit(edit)["kind"] == "applied" for step in steps for edit in step.edits)
    edits = sum(len(step.edits) for step in steps)
    return (
        f"{len(steps)} steps: {accepted} of {tried} candidates accepted; {applied} of {edits} selected edits applied."
    )


def _first_score(history: OptimizeHistory) -> float | None:
    """Score of the first document: what the first step had to exceed."""
    for step in history.steps[:1]:
        if not step.accepted:
            return _number(step.row.get("current_score"))
    hard = [float(each.get("hard", 0)) for each in history.baseline]
    return sum(hard) / len(hard) if hard else None


def _candidate_score(row: Mapping[str, Any]) -> float | None:
    """Under the gate's metric; None where the evaluation ended early, since the mean of some items says nothing of all."""
    return _number(row.get("candidate_gate_score")) if row.get("selection_whole", True) else None


def _interval(values: Sequence[float]) -> str:
    low, high = mean_interval(values, confidence=CONFIDENCE)
    return f"{sum(values) / len(values):.3f} [{low:.3f}, {high:.3f}]"


def _gate(action: Any) -> str:
    return GATE.get(str(action), _clean(str(action).replace("_", " ")))


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and abs(value) < 1e9 else None


def _decimal(value: Any) -> str:
    number = _number(value)
    return "-" if number is None else f"{number:.4f}"


def _clean(value: Any) -> str:
    """A text of anybody's as it is shown."""
    return escape_terminal(str(value))
