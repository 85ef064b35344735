"""View of `skillttrl inspect` for JSONL files: trajectories, votes, and files of figures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import from_json as from_json_text

from skill_ttrl.errors import DataError, RunFolderError
from skill_ttrl.rollout.outcome import EpisodeResult, count_by_type, count_success, episode_result
from skill_ttrl.runs.episode_logs import identity_file, read_identity
from skill_ttrl.stages.inspecting.inspect_results import evaluation_inspection, step_rows
from skill_ttrl.stages.reports.inspection import Inspection, short, with_interval
from skill_ttrl.stages.reports.summarize import read_evaluations
from skill_ttrl.storage.jsonl import first_keys, read_jsonl, whole_lines
from skill_ttrl.types import Trajectory, first_problem, from_json
from skill_ttrl.types.thoughts import folded

COLUMNS = (
    "strategy",
    "phase",
    "step",
    "task",
    "task_id",
    "answer",
    "reward",
    "original_score",
    "advantages",
    "majority_ratio",
    "correct",
    "tie",
    "stop_reason",
    "text",
)
"""Fields of trajectories and votes worth a column, in this order."""

EPISODE_COLUMNS = ("success", "turns", "stop_reason", "task", "text")
"""Of episodes that were collected: a line of them has no phase of a run."""

SAID = ("text", "responses", "samples", "messages")
"""Fields of what a model wrote; thoughts in them are folded."""


def records_inspection(path: Path, limit: int) -> Inspection:
    """Line by line: a file of trajectories can be larger than memory. Files of figures are small, and shown whole."""
    first = first_keys(path)
    if {"label", "accuracy", "results"} <= first:
        return evaluation_inspection("records", path, read_evaluations(path))
    if {"phase", "step"} <= first and not first & {"task", "task_id"}:
        records = read_jsonl(path)
        return Inspection("records", str(path), {"lines": len(records)}, *step_rows(records))
    shown: list[dict[str, Any]] = []
    outcomes: list[EpisodeResult] = []
    notes: list[str] = []
    count = 0
    for where, line in whole_lines(path, notes):
        record = _record(f"{path}, line {where.rpartition(':')[2]}", line)
        count += 1
        row = _flatten(record) if count <= limit else {}
        if {"task", "steps", "stop_reason"} <= record.keys():
            outcome = _outcome(where, line)
            outcomes.append(outcome)
            row |= {"success": {True: "yes", False: "no", None: None}[outcome.success], "turns": outcome.steps}
        if count <= limit:
            shown.append(row)
    if not count:
        raise DataError(f"{path} holds no complete line.")
    present = {name for row in shown for name in row}
    episodes = outcomes and "phase" not in present
    known = [name for name in (EPISODE_COLUMNS if episodes else COLUMNS) if name in present]
    columns = known if len(known) > 1 else sorted(present)[:8]
    rows = [[short(_folded(row.get(name)) if name in SAID else row.get(name)) for name in columns] for row in shown]
    facts = {"lines": count, **_collected(path, count), **(_success(outcomes) if outcomes else {})}
    return Inspection("records", str(path), facts, columns, rows, [f"showing {len(shown)} of {count}", *notes])


def _collected(path: Path, count: int) -> dict[str, Any]:
    """Return the settings stored next to a file that `skillttrl collect` has written; empty if there are none."""
    if not identity_file(path).is_file():
        return {}
    made = read_identity(path)["made_with"]
    whole = (
        "yes" if count == made["episodes"] else f"no, of {made['episodes']}; continue with the command that started it"
    )
    return {"complete": whole, **{name: made[name] for name in ("env", "agent", "split", "seed", "rollouts_per_task")}}


def _record(where: str, line: bytes) -> dict[str, Any]:
    try:
        found = from_json_text(line)
    except ValueError as error:
        raise RunFolderError(f"{where} is not JSON: {error}.") from None
    if not isinstance(found, dict):
        raise RunFolderError(f"{where}: expected an object, found {type(found).__name__}.")
    return found


def _outcome(where: str, line: bytes) -> EpisodeResult:
    try:
        return episode_result(from_json(Trajectory, line))
    except ValidationError as error:
        raise RunFolderError(f"{where} is no trajectory: {first_problem(error)}.") from None


def _success(outcomes: Sequence[EpisodeResult]) -> dict[str, str]:
    """Summarize the success of the episodes, in all and by type; empty unless the environment judged all of them."""
    overall = count_success(outcomes)
    if overall.success is None:
        return {}
    sources = sorted({outcome.source for outcome in outcomes} - {""})
    facts = {"source": ", ".join(sources)} if sources else {}
    for kind, each in {"success": overall, **count_by_type(outcomes)}.items():
        text = f"{with_interval(each.success, each.interval)} in {each.episodes:,} episodes"
        text += "" if each.score is None else f", score {each.score:.3f}"
        text += "" if each.steps is None else f", {each.steps:.1f} steps"
        text += f", {each.failed:,} failed" if each.failed else ""
        facts[kind or "other"] = text + (f", {each.exploits:,} with an attempted exploit" if each.exploits else "")
    return facts


def _folded(value: Any) -> Any:
    if isinstance(value, list):
        return [_folded(each) for each in value]
    if isinstance(value, dict):
        return {name: _folded(each) for name, each in value.items()}
    return folded(value) if isinstance(value, str) else value


def _flatten(record: dict[str, Any]) -> dict[str, Any]:
    """A trajectory's nested parts as plain cells, other records as they are."""
    row = dict(record)
    if isinstance(row.get("task"), dict):
        row["task"] = row["task"].get("id")
    if isinstance(row.get("steps"), list):
        row["text"] = " ⏎ ".join(str(step.get("action", "")) for step in row["steps"])
    return row
