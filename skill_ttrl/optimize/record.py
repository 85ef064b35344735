"""Data of an optimization: its task, its state between two steps, the records of a step and of an epoch's end, and the outcome; and its folder.

The folder has the names of skillrl 1.0.0. All of it is a view: only the journal decides. A continued run replays its finished steps,
and writes their files again, with the times that the replay took.

best_skill.md  current_skill.md  history.json  runtime_state.json
skills/skill_v0003.md                     the document after step 3, with what the end of its epoch added
slow_update/epoch_02/                     comparison of the epochs 1 and 2, and the guidance from it
steps/step_0003/                          rollouts, patches, candidate and edits of step 3
baseline_selection_eval/ test_eval_baseline/ test_eval_best/
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from skill_ttrl.optimize.calls import Item
from skill_ttrl.optimize.gate import Evaluation
from skill_ttrl.optimize.lessons import Pair, count_changes
from skill_ttrl.optimize.types import Patch, RawPatch, RolloutResult, compute_score, skill_hash
from skill_ttrl.storage.files import wrap_os_errors, write_atomic


@dataclass(frozen=True)
class OptimizeTask:
    """Items by role."""

    train: Sequence[Item]
    """Rolled out and reflected on."""
    selection: Sequence[Item]
    """Decide on candidates; no analyst sees them."""
    test: Sequence[Item] = ()
    """Rolled out at the end, with the first and the best document."""
    name: str = "task"


@dataclass(frozen=True)
class OptimizeState:
    """The documents between two steps."""

    current: str
    current_evaluation: Evaluation
    best: str
    best_score: float
    best_step: int = 0
    step: int = 0
    """Steps behind it."""
    updates: int = 0
    """Of those, the ones that had edits to select from: the scheduler counts these."""
    epoch_document: str | None = None
    """The document at the end of the last epoch; None in the first one."""

    @property
    def current_score(self) -> float:
        """Under the gate's metric, of the last evaluation that passed it."""
        return self.current_evaluation.score


@dataclass(kw_only=True)
class Judged:
    """A candidate and what the gate made of it; of one that was not made, None."""

    candidate: str | None = None
    evaluation: Evaluation | None = None
    candidate_score: float | None = None
    """Under the gate's metric; None where the candidate was not evaluated, or abandoned."""
    action: str = "skip_no_patches"
    """`accept_new_best`, `accept`, `reject`, or `skip_` and what was missing: `no_patches`, `no_budget`, `no_change`."""
    reason: str = ""
    fallbacks: Counter[str] = field(default_factory=Counter)
    """Stages in which no usable answer came, and a rule stood in."""


@dataclass
class StepRecord(Judged):
    """Everything that a step made, stage by stage; what a skipped stage would have made is None."""

    step: int
    epoch: int
    step_in_epoch: int
    before: str
    """The document at its start."""
    rollouts: Sequence[RolloutResult] = ()
    raw_patches: Sequence[RawPatch] = ()
    merged: Patch | None = None
    edit_budget: int | None = None
    """Most edits of this step; None where nothing bounds them."""
    selected: Patch | None = None
    report: Sequence[Mapping[str, Any]] = ()
    """Status of each edit."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Wall time by stage."""

    def row(self, state: OptimizeState) -> dict[str, Any]:
        """The step as one line of `history.json`, with the names of skillrl 1.0.0; `state` is the one behind it."""
        hard, soft = compute_score(self.rollouts)
        failures = sum(raw.source_type == "failure" for raw in self.raw_patches)
        row: dict[str, Any] = {
            "step": self.step,
            "epoch": self.epoch,
            "step_in_epoch": self.step_in_epoch,
            "rollout_hard": round(hard, 6),
            "rollout_soft": round(soft, 6),
            "rollout_n": len(self.rollouts),
            "n_failure_patches": failures,
            "n_success_patches": len(self.raw_patches) - failures,
        }
        if self.merged is not None:
            row["n_edits_merged"] = len(self.merged.edits)
        if self.candidate is not None:
            row |= {"candidate_skill_len": len(self.candidate), "candidate_hash": skill_hash(self.candidate)}
            if self.selected is not None:  # an engine of whole documents selects no edits
                statuses = [str(each["status"]) for each in self.report]
                row |= {"edit_budget": self.edit_budget, "n_edits_ranked": len(self.selected.edits)}
                row["apply_report"] = {
                    "total": len(statuses),
                    "applied": sum(status.startswith("applied") for status in statuses),
                    "skipped": sum(status.startswith("skipped") for status in statuses),
                    "errors": statuses.count("error"),
                }
        if self.evaluation is not None:
            whole = self.evaluation.whole  # the mean of an abandoned evaluation says little: hard items come first
            hard, soft = compute_score(self.evaluation.results)
            row |= {
                "selection_hard": hard if whole else None,
                "selection_soft": soft if whole else None,
                "selection_n": len(self.evaluation.results),
                "selection_whole": whole,
                "selection_cached": self.evaluation.cached,
                "candidate_gate_score": self.candidate_score,
            }
        return row | {
            "action": self.action,
            "reason": self.reason,
            "current_score": state.current_score,
            "best_score": state.best_score,
            "best_step": state.best_step,
            "skill_len": len(state.current),
            "fallbacks": dict(self.fallbacks),
            "timing": {f"{stage}_s": round(seconds, 3) for stage, seconds in self.seconds.items()},
        }


@dataclass
class EpochRecord(Judged):
    """The record of an epoch's end: comparison, guidance, decision on the document with the new guidance."""

    epoch: int
    step: int
    """Steps behind it."""
    pairs: Sequence[Pair]
    """Items under the documents at the end of the last epoch and of this one."""
    guidance: str | None = None
    """New text of the guidance block; without one the action is `no_content`."""

    def row(self) -> dict[str, Any]:
        """The record as JSON, with SkillOpt's names."""
        return {
            "epoch": self.epoch,
            "step": self.step,
            "action": self.action,
            "reason": self.reason,
            "changes": count_changes(self.pairs),
            "prev_hard": compute_score([pair.before for pair in self.pairs])[0],
            "curr_hard": compute_score([pair.after for pair in self.pairs])[0],
            "slow_update_content": self.guidance,
            "fallbacks": dict(self.fallbacks),
            **({} if self.candidate is None else {"candidate_hash": skill_hash(self.candidate)}),
            **({} if self.candidate_score is None else {"candidate_gate_score": self.candidate_score}),
        }


@dataclass(frozen=True)
class Optimized:
    """The outcome of an optimization."""

    state: OptimizeState
    first: str
    """The document it began with."""
    first_evaluation: Evaluation
    rows: Sequence[Mapping[str, Any]]
    """The steps as `history.json` has them."""
    test_first: Sequence[RolloutResult] | None = None
    """Test rollouts of the first document; None where the test was left out."""
    test_best: Sequence[RolloutResult] | None = None
    ends: Sequence[Mapping[str, Any]] = ()
    """Of the epochs that were compared with the one before; see `EpochRecord.row`."""


class Watch:
    """A listener to the loop that does nothing; override what is of interest."""

    def begin(self, state: OptimizeState, steps: int) -> None:
        """The first document is evaluated, and `steps` steps follow."""

    def enter(self, step: int, stage: str) -> None:
        """A stage of a step begins."""

    def step(self, record: StepRecord, state: OptimizeState) -> None:
        """A step is finished. May raise to leave."""

    def epoch(self, record: EpochRecord, state: OptimizeState) -> None:
        """Two epochs were compared, at the end of the later one."""


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

    def begin(self, state: OptimizeState, steps: int) -> None:
        """Write the first document and its evaluation; remove what a kill left half written."""
        for left in self.folder.rglob(".*.tmp-*"):
            left.unlink(missing_ok=True)
        write_results(self.folder / "baseline_selection_eval", state.current_evaluation.results)
        self._state(state)

    def step(self, record: StepRecord, state: OptimizeState) -> None:
        """Write a step and the state behind it."""
        step, row = self.folder / "steps" / f"step_{record.step:04d}", record.row(state)
        write_file(step / "rollout_results.json", [result.to_dict() for result in record.rollouts])
        write_file(step / "raw_patches.json", [raw.to_dict() for raw in record.raw_patches])
        for name, patch in (("merged", record.merged), ("ranked", record.selected)):
            if patch is not None:
                write_file(step / f"{name}_patch.json", patch.to_dict())
        if record.candidate is not None:
            write_file(step / "candidate_skill.md", record.candidate)
            write_file(step / "edit_apply_report.json", list(record.report))
        if record.evaluation is not None and not record.evaluation.cached:
            write_results(step / "selection_eval", record.evaluation.results)
        write_file(step / "step_record.json", row)
        self.rows.append(row)
        write_file(self.folder / "history.json", self.rows)
        self._state(state)

    def epoch(self, record: EpochRecord, state: OptimizeState) -> None:
        """Write a comparison of two epochs, what was written from it, and the document behind it."""
        folder = self.folder / "slow_update" / f"epoch_{record.epoch:02d}"
        write_file(folder / "comparison_pairs.json", [pair.to_dict() for pair in record.pairs])
        write_file(folder / "slow_result.json", record.row())
        self._state(state)

    def end(self, outcome: Optimized) -> None:
        """Write the test rollouts."""
        for name, results in (("baseline", outcome.test_first), ("best", outcome.test_best)):
            if results is not None:
                write_results(self.folder / f"test_eval_{name}", results)

    def _state(self, state: OptimizeState) -> None:
        if self._snapshots:
            write_file(self.folder / "skills" / f"skill_v{state.step:04d}.md", state.current)
        write_file(self.folder / "current_skill.md", state.current)
        write_file(self.folder / "best_skill.md", state.best)
        written = {
            "last_completed_step": state.step,
            "current_score": state.current_score,
            "best_score": state.best_score,
            "best_step": state.best_step,
            "scheduler_state": {"current_step": state.updates},
        }
        write_file(self.folder / "runtime_state.json", written)


def write_results(folder: Path, results: Sequence[RolloutResult]) -> None:
    """Write the rollouts of an evaluation and their means."""
    hard, soft = compute_score(results)
    write_file(folder / "results.json", [result.to_dict() for result in results])
    write_file(folder / "summary.json", {"hard": hard, "soft": soft, "n": len(results)})


def write_file(path: Path, value: Any) -> None:
    """Write a text, or a value as JSON, whole or not at all, unless it is there already; its folder is made.

    Raises:
        RunFolderError: it cannot be written.
    """
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2)
    data = text.encode("utf-8", "replace")
    with wrap_os_errors("write", path):
        if path.is_file() and path.read_bytes() == data:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, data)
