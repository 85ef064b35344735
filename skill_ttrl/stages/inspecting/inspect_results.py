"""Views of `skillttrl inspect` for evaluations, folders of runs, and runs under several seeds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from skill_ttrl.errors import DataError
from skill_ttrl.stages.inspecting.inspection import Inspection, short, with_interval
from skill_ttrl.stages.reports.run_list import list_runs
from skill_ttrl.stages.reports.seeds import OverSeeds, Seeds
from skill_ttrl.statistics import verdict
from skill_ttrl.storage.jsonl import parse_json

MAIN_METRICS = ("problems", "samples", "accuracy", "majority", "greedy", "score")
"""Fields of an evaluation that matter most."""


def evaluation_inspection(path: Path) -> Inspection:
    """Figures that `evaluate --output` has written: a column for each evaluation."""
    try:
        found = parse_json(path.read_text(encoding="utf-8"))
        if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
            raise ValueError("expected a list of evaluations")
    except (OSError, ValueError) as error:
        raise DataError(f"Cannot read {path}: {error}.") from None
    columns, rows = evaluation_rows(found)
    main = [row for row in rows if row[0] in MAIN_METRICS]
    rest = [row for row in rows if row[0] not in MAIN_METRICS]
    facts = {"evaluations": len(found)}
    return Inspection("evaluation", str(path), facts, columns, [*main, *rest], main_rows=len(main) or None)


def evaluation_rows(found: Sequence[dict[str, Any]]) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
    """A table of evaluations: a row for each figure, a column for each evaluation; what was not measured is left out."""
    hidden = ("label", "results", "pass_at_k_intervals")
    names = dict.fromkeys(
        name for each in found for name in each if name not in hidden and not name.endswith("_interval")
    )
    rows = [
        row
        for name in names
        for row in _evaluated(name, found)
        if any(value not in (None, "", "{}") for value in row[1:])
    ]
    return ("metric", *(str(each.get("label", "")) for each in found)), rows


def step_rows(records: Sequence[dict[str, Any]]) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
    """A table of figures by step: a row for each figure of each phase, with where it began, ended and lay."""
    values: dict[tuple[str, str], list[float]] = {}
    for record in records:
        for name, value in record.items():
            if name not in ("phase", "step") and isinstance(value, int | float):
                values.setdefault((str(record.get("phase")), name), []).append(float(value))
    rows = [
        (phase, name, len(each), *(f"{value:.4g}" for value in (each[0], each[-1], fmean(each), min(each), max(each))))
        for (phase, name), each in values.items()
    ]
    return ("metric", "phase", "steps", "first", "last", "mean", "least", "most"), [
        (name, phase, *rest) for phase, name, *rest in rows
    ]


def text_edit_rows(lines: Sequence[dict[str, Any]]) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
    """The steps of a run that edited the text of its bank: a row for each edit, and one for a step without edits."""
    rows: list[tuple[Any, ...]] = []
    for line in lines:
        failed = f"{line.get('failures')} of {line.get('rollouts')}"
        changes = ", ".join(f"{each.get('kind')} {each.get('id')}" for each in line["changes"])
        edits = [(each.get("op"), each.get("status"), _edited(each)) for each in line["report"]] or [(None, None, None)]
        rows += [(line["step"], failed, *edit, short(changes or "none")) for edit in edits]
    return ("step", "failed", "edit", "status", "text", "changes of the step"), rows


def _edited(report: dict[str, Any]) -> Any:
    return short(str(report.get("content_preview") or report.get("target") or "").replace("\n", " "))


def _evaluated(name: str, found: Sequence[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Rows of one field: of a mapping, such as pass@k, one for each key."""
    values = [each.get(name) for each in found]
    if not any(isinstance(value, dict) for value in values):
        return [(name, *(with_interval(each.get(name), each.get(f"{name}_interval")) for each in found))]
    keys = dict.fromkeys(key for value in values if isinstance(value, dict) for key in value)
    bounds = f"{name}_intervals"
    return [
        (
            f"{name} {key}",
            *(with_interval((each.get(name) or {}).get(key), (each.get(bounds) or {}).get(key)) for each in found),
        )
        for key in keys
    ]


def runs_inspection(path: Path) -> Inspection:
    """The runs in a folder and one level below it."""
    found = list_runs(path)
    rows = [
        (
            each.path.removeprefix(f"{path}/"),
            each.seed,
            "+".join(each.phases),
            "damaged" if each.fault else "yes" if each.ended else "no",
            short(each.before),
            short(each.after),
        )
        for each in found
    ]
    notes = [f"{each.path}: {each.fault}" for each in found if each.fault]
    notes += [f"Compare two: skillttrl inspect {path}/A {path}/B"]
    columns = ("run", "seed", "phases", "ended", "before", "after")
    return Inspection("runs", str(path), {"runs": len(rows)}, columns, rows, notes)


def seeds_inspection(found: Seeds) -> Inspection:
    """Runs under several seeds: mean, standard deviation and interval over seeds of each figure."""
    facts = {
        "name": found.name,
        "seeds": ", ".join(map(str, found.seeds)),
        "ended": ", ".join(map(str, found.ended)) or "none; continue with --resume auto",
        "wall time": f"{found.seconds:.0f} s",
    }

    def shown(each: OverSeeds | None, sign: str = "") -> str | None:
        if each is None:
            return None
        spread = "" if each.spread is None else f" ± {each.spread:.3f}"
        bounds = "" if each.interval is None else f" [{each.interval[0]:{sign}.3f}, {each.interval[1]:{sign}.3f}]"
        return f"{each.mean:{sign}.3f}{spread}{bounds}"

    labels = dict.fromkeys((*found.before, *found.after))

    def judged(each: OverSeeds | None) -> str | None:
        return None if each is None or each.interval is None else verdict(each.interval)

    def row(label: str) -> tuple[str | None, ...]:
        change = found.change.get(label)
        return label, shown(found.before.get(label)), shown(found.after.get(label)), shown(change, "+"), judged(change)

    main = [label for label in labels if "," not in label and label.startswith(("avg@", "maj@", "greedy", "score"))]
    rows = [row(label) for label in (*main, *(label for label in labels if label not in main and label != "pass@1"))]
    notes = [f"Mean ± standard deviation over seeds, and Student's {found.confidence:.0%} interval of the mean."]
    if len(found.ended) < len(found.seeds):
        notes.append(
            f"{len(found.seeds) - len(found.ended)} of {len(found.seeds)} seeds have not ended and are left out."
        )
    columns = ("metric", "before", "after", "change", "verdict")
    return Inspection("seeds", found.path, facts, columns, rows, notes, main_rows=len(main) or None)
