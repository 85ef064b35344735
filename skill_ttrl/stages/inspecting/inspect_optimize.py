"""View of `skillttrl inspect` for an optimization: its steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from skill_ttrl.config import load_config
from skill_ttrl.errors import RunFolderError
from skill_ttrl.llm.openai.ledger import USAGE, read_usage, usage_lines, usage_report
from skill_ttrl.stages.inspecting.inspection import Inspection, short
from skill_ttrl.stages.optimizing.summary import read_summary, summary_lines
from skill_ttrl.storage.jsonl import parse_json

COLUMNS = ("step", "action", "success", "edits", "candidate", "current", "best")
ACTIONS = {
    "accept_new_best": "new best",
    "reject_too_long": "too long",
    "skip_no_patches": "no patch",
    "skip_no_budget": "no budget",
    "skip_no_rewrite": "no rewrite",
    "skip_no_change": "no change",
}


def optimize_inspection(path: Path, *, limit: int) -> Inspection:
    """The steps of an optimization, the newest `limit` of them, and what it reached.

    Raises:
        RunFolderError: a file of it cannot be read.
    """
    if not (path / "config.yaml").is_file():
        return _of_trainer(path, limit)
    config, rows, summary = load_config(path / "config.yaml", trust=True), history(path), read_summary(path)
    asked = config.optimize
    assert asked is not None
    facts: dict[str, Any] = {"name": config.name, "seed": config.seed, "environment": config.env.id}
    facts |= {"engine": asked.engine, "optimizer": asked.optimizer, "steps done": len(rows)}
    facts["ended"] = "yes" if summary else "no; the same command continues it"
    facts["document"] = str(path / "best_skill.md")
    notes = [f"Of {len(rows)} steps the newest {limit}; --rows shows more."] if len(rows) > limit else []
    if summary is not None:
        facts |= {
            "policy": summary.policy,
            "items": ", ".join(f"{role} {count}" for role, count in summary.items.items()),
        }
        first, best = summary.selection_first, summary.selection_best
        notes.append(f"Selection: first {first.hard:.3f} [{first.low:.3f}, {first.high:.3f}], best {best:.3f}.")
        for name, score in (("first", summary.test_first), ("best", summary.test_best)):
            if score is not None:
                notes.append(f"Test, {name} document: {score.hard:.3f} [{score.low:.3f}, {score.high:.3f}].")
        notes += summary_lines(summary)
    elif (path / USAGE).is_file():
        notes += usage_lines(usage_report(read_usage(path / USAGE)))
    notes.append(f"A step's edits and candidate: {path}/steps/step_N")
    return Inspection("optimization", str(path), facts, COLUMNS, [_row(row) for row in rows[-limit:]], notes)


def _of_trainer(path: Path, limit: int) -> Inspection:
    """The same of a folder of `SkillOptTrainer`."""
    config, rows, summary = read_json(path / "config.json", {}), history(path), read_json(path / "summary.json", {})
    facts = {"environment": summary.get("env", ""), "seed": config.get("seed"), "steps done": len(rows)}
    facts |= {"ended": "yes" if summary else "no; the same call of train() continues it"}
    facts |= {"document": str(path / "best_skill.md")}
    notes = [f"Of {len(rows)} steps the newest {limit}; --rows shows more."] if len(rows) > limit else []
    for name, key in (("first", "baseline_test_hard"), ("best", "test_hard")):
        if (score := summary.get(key)) is not None:
            low, high = summary[f"{key}_interval"]
            notes.append(f"Test, {name} document: {score:.3f} [{low:.3f}, {high:.3f}].")
    notes.append(f"A step's edits and candidate: {path}/steps/step_N")
    return Inspection("optimization", str(path), facts, COLUMNS, [_row(row) for row in rows[-limit:]], notes)


def history(path: Path) -> list[Mapping[str, Any]]:
    """The steps that an optimization has finished."""
    found: list[Mapping[str, Any]] = read_json(path / "history.json", [])
    return found


def read_json(file: Path, missing: Any) -> Any:
    """The content of a JSON file; `missing` where there is none.

    Raises:
        RunFolderError: it cannot be read.
    """
    if not file.is_file():
        return missing
    try:
        return parse_json(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunFolderError(f"Cannot read {file}: {error}.") from None


def _row(row: Mapping[str, Any]) -> Sequence[Any]:
    edits = row.get("apply_report") or {}
    applied = f"{edits.get('applied', 0)} of {edits.get('total', 0)}" if edits else "-"
    score = row.get("candidate_gate_score")
    abandoned = f"after {row.get('selection_n')} items" if row.get("selection_whole") is False else "-"
    return (
        row.get("step"),
        ACTIONS.get(str(row.get("action")), row.get("action")),
        short(row.get("rollout_hard")),
        applied,
        abandoned if score is None else short(score),
        short(row.get("current_score")),
        short(row.get("best_score")),
    )
