"""The history of an optimization as its folder tells it; works while the run is still going on, and for `SkillOptTrainer`'s folders."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from skill_ttrl.errors import RunFolderError
from skill_ttrl.llm.openai.ledger import USAGE, read_usage, usage_lines, usage_report
from skill_ttrl.optimize.calls import JOURNAL
from skill_ttrl.storage.jsonl import parse_json, read_jsonl

HISTORY = "history.json"
STATE = "runtime_state.json"


@dataclass(frozen=True)
class HistoryStep:
    """One step, with the documents around it."""

    row: Mapping[str, Any]
    """Its line in `history.json`."""
    edits: Sequence[Mapping[str, Any]]
    """Selected edits, each with the `status` that applying it had."""
    before: str
    candidate: str | None
    """None where nothing was edited."""
    after: str
    """The document behind the step and, where its epoch ends with it, behind the epoch."""
    epoch: Mapping[str, Any] | None = None
    """Record of its epoch's end (`slow_update/`); None where it did nothing."""

    @property
    def number(self) -> int:
        """The step, from 1."""
        return int(self.row["step"])

    @property
    def accepted(self) -> bool:
        """True if the candidate took the place of the document."""
        return str(self.row.get("action", "")).startswith("accept")

    @property
    def behind_step(self) -> str:
        """The document that the gate left, before the end of an epoch changed it."""
        return self.candidate if self.accepted and self.candidate is not None else self.before


@dataclass(frozen=True)
class OptimizeHistory:
    """The content of an optimization's folder."""

    path: Path
    steps: Sequence[HistoryStep]
    first: str | None
    """The first document; None where no snapshot was saved."""
    best: str
    state: Mapping[str, Any]
    summary: Mapping[str, Any] | None
    """None while the run goes on."""
    baseline: Sequence[Mapping[str, Any]]
    """Selection results of the first document."""
    tests: tuple[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]]] | None
    """Test results of the first and the best document; None where nothing was tested."""
    work: Mapping[str, Mapping[str, Any]]
    """Requests and rollouts by stage."""
    spending: Sequence[str]
    """Spending on models behind addresses, in lines."""


def is_optimization(path: Path) -> bool:
    """True for the folder of an optimization that has begun."""
    return (path / STATE).is_file() and (path / "current_skill.md").is_file()


def read_history(path: Path) -> OptimizeHistory:
    """Read the folder of an optimization.

    Raises:
        RunFolderError: it is none, or one of its files cannot be read.
    """
    if not is_optimization(path):
        raise RunFolderError(f"{path} is no folder of an optimization that has begun: it has no {STATE}.")
    summary = _json(path / "summary.json", None)
    first = _text(path / "skills" / "skill_v0000.md")
    tests = tuple(_json(path / f"test_eval_{name}" / "results.json", []) for name in ("baseline", "best"))
    usage = usage_lines(usage_report(read_usage(path / USAGE))) if (path / USAGE).is_file() else []
    return OptimizeHistory(
        path=path,
        steps=_steps(path, first or ""),
        first=first,
        best=_text(path / "best_skill.md") or "",
        state=_json(path / STATE, {}),
        summary=summary,
        baseline=_json(path / "baseline_selection_eval" / "results.json", []),
        tests=(tests[0], tests[1]) if all(tests) else None,
        work=_work(path, summary or {}),
        spending=usage,
    )


def _steps(path: Path, document: str) -> list[HistoryStep]:
    epochs = {}
    for file in sorted(path.glob("slow_update/epoch_*/slow_result.json")):
        row = _json(file, {})
        epochs[row.get("step")] = row
    steps = []
    for row in _json(path / HISTORY, []):
        folder = path / "steps" / f"step_{int(row['step']):04d}"
        candidate = _text(folder / "candidate_skill.md")
        step = HistoryStep(row, _edits(folder), document, candidate, document, epochs.get(row["step"]))
        saved = _text(path / "skills" / f"skill_v{step.number:04d}.md")
        document = step.behind_step if saved is None else saved
        steps.append(replace(step, after=document))
    return steps


def _edits(folder: Path) -> list[dict[str, Any]]:
    """Edits in full, each with the status of its report."""
    edits = (_json(folder / "ranked_patch.json", {}) or {}).get("edits") or []
    report = _json(folder / "edit_apply_report.json", [])
    found = []
    for place in range(max(len(edits), len(report))):
        edit = edits[place] if place < len(edits) else {"content": report[place].get("content_preview", "")}
        found.append({**edit, **(report[place] if place < len(report) else {"status": "not applied"})})
    return found


def _work(path: Path, summary: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """By stage, from the summary; while the run goes on from the journal, which does not say what rollouts were for."""
    if found := summary.get("work") or summary.get("calls"):
        return {str(stage): dict(each) for stage, each in found.items()}
    work: dict[str, Counter[str]] = {}
    for line in read_jsonl(path / JOURNAL) if (path / JOURNAL).is_file() else ():
        result = line.get("result", {})
        count = work.setdefault(str(result.get("stage", "rollouts")), Counter())
        count["asked"] += 1
        count["failed"] += "error" in result
        for name in ("prompt_tokens", "completion_tokens"):
            count[name] += int(result.get(name, 0))
    return {stage: work[stage] for stage in sorted(work)}


def _json(path: Path, missing: Any) -> Any:
    """The content of a file; `missing` where it is not there.

    Raises:
        RunFolderError: it cannot be read, or is of another shape than `missing`.
    """
    try:
        found = parse_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return missing
    except (OSError, ValueError) as error:
        raise RunFolderError(f"{path} cannot be read: {error}. It was changed or is damaged.") from None
    if missing is not None and not isinstance(found, type(missing)):
        raise RunFolderError(f"{path} holds {type(found).__name__} in place of {type(missing).__name__}.")
    return found


def _text(path: Path) -> str | None:
    """A text as it stands in its file, line ends included; None where there is none."""
    try:
        return path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise RunFolderError(f"{path} cannot be read: {error}.") from None
