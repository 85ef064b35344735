"""The folder of an optimization, under the names of skillrl 1.0.0. All of it is a view: only the journal decides.

A continued run replays its finished steps. Their files, with the times that the steps took, stay as they are.

best_skill.md  current_skill.md  history.json  runtime_state.json
skills/skill_v0003.md                     the document after step 3, with what the end of its epoch added
slow_update/epoch_02/ meta_skill/epoch_02/   comparison of the epochs 1 and 2, guidance and lessons from it
steps/step_0003/                          rollouts, patches, candidate and edits of step 3
baseline_selection_eval/ test_eval_baseline/ test_eval_best/
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from skill_ttrl.optimize.record import EpochRecord, Optimized, OptimizeState, StepRecord, Watch
from skill_ttrl.optimize.scores import compute_score
from skill_ttrl.optimize.types import RolloutResult
from skill_ttrl.storage.files import wrap_os_errors, write_atomic
from skill_ttrl.storage.jsonl import parse_json


class FolderWatch(Watch):
    """Writes the files of each step as it is finished.

    Args:
        folder: the run's folder.
        snapshots: write the document after every step to `skills/`.
    """

    def __init__(self, folder: Path, *, snapshots: bool = True) -> None:
        self.folder, self._snapshots = folder, snapshots
        self.rows: list[dict[str, Any]] = []
        """The steps so far, as in `history.json`."""
        self._finished = 0
        """Steps whose files were there at the beginning."""

    def begin(self, state: OptimizeState, steps: int) -> None:
        """Write the first document and its evaluation; remove what a kill left half written."""
        for left in self.folder.rglob(".*.tmp-*"):
            left.unlink(missing_ok=True)
        finished = read_json(self.folder / "runtime_state.json").get("last_completed_step")
        self._finished = finished if isinstance(finished, int) else 0
        self._snapshot(0, state.current)
        write_results(self.folder / "baseline_selection_eval", state.current_evaluation.results)
        self._state(state)

    def step(self, record: StepRecord, state: OptimizeState) -> None:
        """Write a step and the state behind it."""
        step = self.folder / "steps" / f"step_{record.step:04d}"
        row = record.row(state)
        before = read_json(step / "step_record.json")
        if _timeless(before) == _timeless(json.loads(json.dumps(row))):
            self.rows.append(before)
            return
        write_json(step / "rollout_results.json", [result.to_dict() for result in record.rollouts])
        write_json(step / "raw_patches.json", [raw.to_dict() for raw in record.raw_patches])
        if record.merged is not None:
            write_json(step / "merged_patch.json", record.merged.to_dict())
        if record.selected is not None:
            write_json(step / "ranked_patch.json", record.selected.to_dict())
        if record.candidate is not None:
            write_text(step / "candidate_skill.md", record.candidate)
            write_json(step / "edit_apply_report.json", list(record.report))
        if record.evaluation is not None and not record.evaluation.cached:
            write_results(step / "selection_eval", record.evaluation.results)
        self._snapshot(record.step, state.current)
        write_json(step / "step_record.json", row)  # last: where it is, the step is whole
        self.rows.append(row)
        write_json(self.folder / "history.json", self.rows)
        self._state(state)

    def epoch(self, record: EpochRecord, state: OptimizeState) -> None:
        """Write a comparison of two epochs, what was written from it, and the document behind it."""
        name = f"epoch_{record.epoch:02d}"
        write_json(
            self.folder / "slow_update" / name / "comparison_pairs.json", [pair.to_dict() for pair in record.pairs]
        )
        write_json(self.folder / "slow_update" / name / "slow_result.json", record.row())
        if record.meta_skill is not None:
            result = {"epoch": record.epoch, "meta_skill_content": record.meta_skill}
            write_json(self.folder / "meta_skill" / name / "meta_skill_result.json", result)
        self._snapshot(record.step, state.current)
        self._state(state)

    def end(self, outcome: Optimized) -> None:
        """Write the last state and the test rollouts."""
        write_json(self.folder / "history.json", self.rows)
        self._state(outcome.state)
        for name, results in (("baseline", outcome.test_first), ("best", outcome.test_best)):
            if results is not None:
                write_results(self.folder / f"test_eval_{name}", results)

    def _snapshot(self, step: int, document: str) -> None:
        if self._snapshots:
            write_text(self.folder / "skills" / f"skill_v{step:04d}.md", document)

    def _state(self, state: OptimizeState) -> None:
        if state.step < self._finished:
            return  # replayed: what is there is newer
        write_text(self.folder / "current_skill.md", state.current)
        write_text(self.folder / "best_skill.md", state.best)
        written = {
            "last_completed_step": state.step,
            "current_score": state.current_score,
            "best_score": state.best_score,
            "best_step": state.best_step,
            "scheduler_state": {"current_step": state.updates},
        }
        write_json(self.folder / "runtime_state.json", written)


def write_results(folder: Path, results: Sequence[RolloutResult]) -> None:
    """Write the rollouts of an evaluation and their means."""
    hard, soft = compute_score(results)
    write_json(folder / "results.json", [result.to_dict() for result in results])
    write_json(folder / "summary.json", {"hard": hard, "soft": soft, "n": len(results)})


def write_json(path: Path, value: Any) -> None:
    """Write JSON whole or not at all; its folder is made.

    Raises:
        RunFolderError: it cannot be written.
    """
    write_text(path, json.dumps(value, ensure_ascii=False, indent=2))


def write_text(path: Path, text: str) -> None:
    """Write a text whole or not at all, unless it is there already; its folder is made. Raises as `write_json`."""
    data = text.encode("utf-8", "replace")
    with wrap_os_errors("write", path):
        if path.is_file() and path.read_bytes() == data:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, data)


def read_json(path: Path) -> dict[str, Any]:
    """An object that `write_json` wrote; empty where there is none that can be read."""
    try:
        found = parse_json(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _timeless(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "timing"}
