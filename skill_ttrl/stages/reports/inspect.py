"""`skillttrl inspect`: what a path holds, whatever it is. It reads and never writes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import from_json as from_json_text

from skill_ttrl.config import load_config, verified_note
from skill_ttrl.errors import DataError, RunFolderError
from skill_ttrl.llm.openai.ledger import ASKED, USAGE, read_usage, usage_lines, usage_report
from skill_ttrl.rollout.outcome import EpisodeResult, count_by_type, count_success, episode_result
from skill_ttrl.runs.checkpoint import MANIFEST, STATE, load_state, verify
from skill_ttrl.runs.episode_logs import IDENTITY, SAMPLES, SampleFolder, identity_file, read_identity
from skill_ttrl.runs.exposure import most_shown
from skill_ttrl.runs.folder import RunFolder
from skill_ttrl.runs.reader import read_run
from skill_ttrl.skills.bank.folder import BANK_FILE, is_bank
from skill_ttrl.skills.formats.files import holds_records
from skill_ttrl.stages.evaluation.compare import EVALUATION
from skill_ttrl.stages.reports.baseline import baseline_lines, find_baseline
from skill_ttrl.stages.reports.inspect_results import (
    evaluation_inspection,
    evaluation_rows,
    runs_inspection,
    seeds_inspection,
    step_rows,
)
from skill_ttrl.stages.reports.inspection import Inspection, short, with_interval
from skill_ttrl.stages.reports.run_list import runs_in
from skill_ttrl.stages.reports.summary_text import (
    change_lines,
    learned_by,
    skill_lines,
    summary_intervals,
    summary_rows,
)
from skill_ttrl.stages.seeds import is_seeds, read_seeds
from skill_ttrl.storage.append_log import flatten
from skill_ttrl.storage.jsonl import first_keys, read_jsonl, whole_lines
from skill_ttrl.types import Trajectory, first_problem, from_json

COVERAGE = "coverage.json"
"""Of a cold start from episodes: what its demonstrations show."""
COLUMNS = (
    "strategy",
    "phase",
    "step",
    "task",
    "task_id",
    "answer",
    "reward",
    "agreement",
    "correct",
    "tie",
    "stop_reason",
    "text",
)
"""Fields of trajectories and votes worth a column, in this order."""

EPISODE_COLUMNS = ("success", "turns", "stop_reason", "task", "text")
"""Of episodes that were collected: a line of them has no phase of a run."""


OBJECTS = {"run.json", "summary.json", STATE, MANIFEST, IDENTITY, "vote.json"}
"""JSON files of runs, checkpoints, kept samples and votes, which are no configs and hold no skills."""


def inspect(path: str | Path, *, limit: int = 10) -> Inspection:
    """Look at a run, a checkpoint, kept samples, a skill bank, skills in any format, a JSONL file or a config.

    Raises:
        RunFolderError: nothing is there, or it is none of these.
        CheckpointError: a checkpoint is damaged.
    """
    path = Path(path)
    if not path.exists():
        raise RunFolderError(f"There is nothing at {path}.")
    if path.is_dir():
        if RunFolder.exists(path):
            return _run(path)
        if (path / MANIFEST).is_file():
            return _checkpoint(path)
        if SampleFolder.exists(path):
            return _kept(path)
        if is_seeds(path):
            return seeds_inspection(read_seeds(path))
        if is_bank(path):
            from skill_ttrl.stages.reports.inspect_bank import inspect_bank

            return inspect_bank(path, limit=limit)
    if path.name == EVALUATION:
        return evaluation_inspection(path)
    if path.name not in OBJECTS and holds_records(path):
        from skill_ttrl.stages.reports.inspect_bank import inspect_skill_file

        return inspect_skill_file(path, limit=limit)
    if path.is_dir() and runs_in(path):
        return runs_inspection(path)
    if path.suffix == ".jsonl":
        return _records(path, limit)
    settings = path.name == BANK_FILE and is_bank(path.parent)
    if path.name in OBJECTS or path.name.endswith(".jsonl.json") or settings:
        return _object(path)
    if path.suffix in {".yaml", ".yml", ".json"}:
        return _config(path)
    raise RunFolderError(
        f"{path} is none of what inspect knows: a run folder (with run.json), a checkpoint (with {MANIFEST}), samples (with {IDENTITY}), a skill bank (with {BANK_FILE}), "
        f"skills in a format that `skills import` reads, a .jsonl file, {', '.join(sorted(OBJECTS))}, or a config (.yaml, .json)."
    )


def _run(path: Path) -> Inspection:
    from skill_ttrl.stages.reports.inspect_bank import run_bank

    found = read_run(path)
    config, summary, metrics = found.config, found.summary, found.metrics
    done = {str(phase): int(count) for phase, count in metrics.groupby("phase").size().items()} if len(metrics) else {}
    checkpoints = sorted(entry.name for entry in (path / "checkpoints").glob("*-*") if not entry.name.startswith("."))
    files = sorted(f"{entry.name} ({entry.stat().st_size:,} bytes)" for entry in path.iterdir() if entry.is_file())
    facts = {
        "name": config.name,
        "seed": config.seed,
        "model": config.model.path,
        "environment": config.env.id,
        "reward": config.rl.reward,
        "phases": ", ".join(config.phases),
        "steps done": ", ".join(f"{phase} {count}" for phase, count in done.items()) or "none",
        "ended": "yes" if summary else "no; go on with --resume auto",
        "checkpoints": ", ".join(checkpoints) or "none",
        "files": ", ".join(name for name in files if not name.startswith(".")),
    }
    columns: tuple[str, ...] = ("figure", "before", "after")
    bounds = summary_intervals(summary) if summary else {}
    rows: list[tuple[Any, ...]] = [
        (
            label,
            with_interval(before, bounds.get((label, "before"))),
            with_interval(after, bounds.get((label, "after"))),
        )
        for label, before, after in (summary_rows(summary) if summary else [])
    ]
    other = find_baseline(path) if summary else None
    if other is not None:
        others = {label: after for label, _, after in summary_rows(other.summary)}
        columns = (*columns, f"after, {learned_by(other.summary)}")
        rows = [(*row, short(others.get(row[0]))) for row in rows]
    told = (
        [
            *change_lines(summary),
            *([summary.stopped] if summary.stopped else []),
            *skill_lines(summary),
            *baseline_lines(path),
            *summary.warnings,
        ]
        if summary
        else []
    )
    if asked := _asked(path):
        facts["models behind addresses"] = asked
    if bank := run_bank(path):
        facts["skill bank"] = bank
    if shown := _demonstrated(path / COVERAGE):
        facts["skills in demonstrations"] = shown
    return Inspection("run", str(path), facts, columns, rows, [*found.notes, *told])


def _demonstrated(file: Path) -> str:
    """Which skill the demonstrations show most; empty where there are none, or none with skills."""
    if not file.is_file():
        return ""
    try:
        found = json.loads(file.read_bytes())
        return most_shown(found["skills_shown"], found["examples"]) if found["skills_shown"] else ""
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"Cannot read {file}: {type(error).__name__}: {error}.") from None


def _asked(folder: Path) -> str:
    """What was asked of models behind addresses and what it cost; empty where nothing was."""
    if not (folder / USAGE).is_file():
        return ""
    lines = usage_lines(usage_report(read_usage(folder / USAGE)))
    return "; ".join(line.removeprefix(f"{ASKED}: ") for line in lines)


def _checkpoint(path: Path) -> Inspection:
    verify(path)
    state = load_state(path)
    manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
    facts = {"phase": state["phase"], "step": state["step"], "whole": "yes, every file matches its SHA-256"}
    rows = [(name, f"{entry['bytes']:,}", entry["sha256"][:12]) for name, entry in sorted(manifest.items())]
    return Inspection("checkpoint", str(path), facts, ("file", "bytes", "sha256"), rows)


def _kept(path: Path) -> Inspection:
    """Samples that an evaluation or a vote keeps as it draws them."""
    found = read_identity(path)
    made_with, wanted = found["made_with"], found.get("lines")
    lines = read_jsonl(path / SAMPLES)
    facts = {
        "samples": f"{len(lines)} of {wanted or 'a number not known yet'} lines",
        "complete": "yes" if len(lines) == wanted else "no; go on with the command that began it",
        "model": made_with["model"],
        "data": ", ".join(each["name"] or "the policy's own problems" for each in made_with["data"]),
    }
    if asked := _asked(path):
        facts["models behind addresses"] = asked
    rows = [
        (name, draw["tries"], draw["temperature"], draw["max_new_tokens"]) for name, draw in made_with["draws"].items()
    ]
    columns: tuple[str, ...] = ("way of sampling", "samples of each", "temperature", "longest")
    notes = [f"vote on them: skillttrl vote {path} --strategies all"]
    if (path / EVALUATION).is_file():
        facts |= {str(name): f"{tries} of each problem at T = {heat:g}" for name, tries, heat, _ in rows}
        figures = evaluation_inspection(path / EVALUATION)
        return Inspection("samples", str(path), facts, figures.columns, figures.rows, notes)
    return Inspection("samples", str(path), facts, columns, rows, notes)


def _records(path: Path, limit: int) -> Inspection:
    """Line by line: a file of trajectories can be larger than memory. Files of figures are small, and shown whole."""
    if figures := _table_of(path):
        lines = len(read_jsonl(path))
        return Inspection("records", str(path), {"lines": lines}, *figures)
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
        raise DataError(f"{path} holds no whole line.")
    present = {name for row in shown for name in row}
    episodes = outcomes and "phase" not in present
    known = [name for name in (EPISODE_COLUMNS if episodes else COLUMNS) if name in present]
    columns = known if len(known) > 1 else sorted(present)[:8]
    rows = [[short(row.get(name)) for name in columns] for row in shown]
    facts = {"lines": count, **_collected(path, count), **(_success(outcomes) if outcomes else {})}
    return Inspection("records", str(path), facts, columns, rows, [f"showing {len(shown)} of {count}", *notes])


def _table_of(path: Path) -> tuple[tuple[str, ...], list[tuple[Any, ...]]] | None:
    """Of files of figures, evaluations or steps, the whole as a table of figures; None: their lines are shown one by one."""
    first = first_keys(path)
    if {"label", "accuracy", "results"} <= first:
        return evaluation_rows(read_jsonl(path))
    if {"phase", "step"} <= first and not first & {"task", "task_id"}:
        return step_rows(read_jsonl(path))
    return None


def _collected(path: Path, count: int) -> dict[str, Any]:
    """What stands beside a file that `skillttrl collect` has written."""
    if not identity_file(path).is_file():
        return {}
    made = read_identity(path)["made_with"]
    whole = "yes" if count == made["episodes"] else f"no, of {made['episodes']}; go on with the command that began it"
    return {"complete": whole, **{name: made[name] for name in ("env", "agent", "split", "seed", "tries")}}


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
    """What the environment says of the episodes, where it could judge all of them."""
    overall = count_success(outcomes)
    if overall.success is None:
        return {}
    sources = sorted({outcome.source for outcome in outcomes} - {""})
    facts = {"source": ", ".join(sources)} if sources else {}
    for kind, each in {"success": overall, **count_by_type(outcomes)}.items():
        assert each.success is not None and each.interval is not None
        bounds = f"[{each.interval[0]:.3f}, {each.interval[1]:.3f}]"
        steps = "" if each.steps is None else f", {each.steps:.1f} steps"
        failed = f", {each.failed:,} failed" if each.failed else ""
        score = "" if each.score is None else f", score {each.score:.3f}"
        around = f", {each.exploits:,} sought a way around" if each.exploits else ""
        facts[kind or "other"] = (
            f"{each.success:.3f} {bounds} in {each.episodes:,} episodes{score}{steps}{failed}{around}"
        )
    return facts


def _flatten(record: dict[str, Any]) -> dict[str, Any]:
    """A trajectory's nested parts as plain cells, other records as they are."""
    row = dict(record)
    if isinstance(row.get("task"), dict):
        row["task"] = row["task"].get("id")
    if isinstance(row.get("steps"), list):
        row["text"] = " ⏎ ".join(str(step.get("action", "")) for step in row["steps"])
    return row


def _object(path: Path) -> Inspection:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"Cannot read {path}: {error}.") from None
    content = found if isinstance(found, dict) else {"": found}
    rows = [(key, short(value)) for key, value in _leaves(content)]
    return Inspection("object", str(path), columns=("key", "value"), rows=rows)


def _config(path: Path) -> Inspection:
    config = load_config(path, trust=True)  # it is shown
    stated = config.model_dump(mode="json", exclude_defaults=True)
    return Inspection(
        "config", str(path), {"valid": "yes", "verified": verified_note(config)}, ("key", "value"), _leaves(stated)
    )


def _leaves(content: dict[str, Any]) -> list[tuple[str, str]]:
    return [(key, str(value)) for key, value in flatten(content, lists=False).items()] if content else []
