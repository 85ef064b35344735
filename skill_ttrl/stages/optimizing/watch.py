"""The run's side of the loop: calls that are counted by stage, and a listener that writes files and reports progress."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from skill_ttrl.errors import EnvError
from skill_ttrl.llm.openai.ledger import Ledger, asked_in
from skill_ttrl.optimize.calls import Calls, Item, Journal
from skill_ttrl.optimize.folder import FolderWatch
from skill_ttrl.optimize.record import OptimizeState, StepRecord
from skill_ttrl.optimize.scores import graded
from skill_ttrl.optimize.types import RolloutResult
from skill_ttrl.progress import Progress, SilentProgress
from skill_ttrl.stages.optimizing.summary import NAMES

PHASE = "optimize"
MARKS = {
    "ungraded": "are ungraded: no analyst reads them and no test counts them; the gate counts them as 0.",
    "rewarded": "were rewarded by the environment, but the task's true answer says that they are wrong, and it decides where info has no 'won'. "
    "If the environment is to decide, return info['won'].",
}
"""Marks of results that are worth a warning; see `results.as_result`."""
FAILED = ("timeout", "no_answer", "error")
"""Stop reasons of rollouts that failed in the environment or had no answer."""


@dataclass
class StagedCalls(Calls):
    """Calls that record rollouts in the ledger under their stage. Counts failed and ungraded rollouts.

    Args:
        progress: gets one warning about each of `MARKS`.
    """

    progress: Progress = field(default_factory=SilentProgress)
    _said: set[str] = field(default_factory=set)

    def roll_out(self, stage: str, document: str, items: Sequence[Item]) -> list[RolloutResult]:
        """See `Calls.roll_out`."""
        with asked_in(stage):
            results = super().roll_out(stage, document, items)
        self.counts[stage].failed += sum(result.extras.get("stop_reason") in FAILED for result in results)
        self.counts[stage].ungraded += sum(result.ungraded for result in results)
        for mark, what in MARKS.items():
            marked = [result.id for result in results if result.extras.get(mark)]
            if marked and mark not in self._said:
                self._said.add(mark)
                where = f"{len(marked)} of {len(results)} rollouts ({NAMES.get(stage, stage)}, first {marked[0]!r})"
                self.progress.notice(f"{where} {what}", warning=True)
        return results

    def check_results(self, results: Sequence[RolloutResult]) -> None:
        """Raise an error if none of the first results of a run is graded.

        Results of such a batch are not logged, so an empty journal means that none was graded yet.

        Raises:
            EnvError: none of the results is graded.
        """
        played = [result for result in results if result.extras.get("stop_reason") not in FAILED]
        if not len(self.journal) and played and all(result.ungraded for result in played):
            raise EnvError(
                f"The first {len(results)} rollouts are all ungraded (first {played[0].id!r}): the environment returns info['graded'] = "
                "False, and the tasks have no true answer. Return info['won'] with an episode's last step, or give the tasks an answer; then "
                "repeat the command."
            )


class ProgressWatch(FolderWatch):
    """Writes the files of each step, and reports steps, stages and scores.

    Args:
        folder: the run's folder.
        progress: receives the reports.
        ledger: of the run. What a finished step has paid for is in the journal, so the ledger need not save it any longer.
        journal: of the run.
    """

    def __init__(self, folder: Path, progress: Progress, ledger: Ledger, journal: Journal) -> None:
        super().__init__(folder)
        self._progress, self._ledger, self._journal = progress, ledger, journal
        self._actions: Counter[str] = Counter()

    def begin(self, state: OptimizeState, steps: int) -> None:
        """See `Watch.begin`."""
        super().begin(state, steps)
        self._settle()
        self._progress.notice(f"First document: selection score {state.current_score:.3f}.")
        self._progress.start(PHASE, steps, "step")

    def enter(self, step: int, stage: str) -> None:
        """See `Watch.enter`."""
        self._progress.enter(PHASE, stage)

    def step(self, record: StepRecord, state: OptimizeState) -> None:
        """See `Watch.step`."""
        super().step(record, state)
        self._settle()
        self._actions[record.action.partition("_")[0]] += 1
        results, spent = graded(record.rollouts), self._ledger.totals()
        figures = {
            "current": state.current_score,
            "best": state.best_score,
            "success": sum(result.hard for result in results) / len(results) if results else 0.0,
            "accepted": self._actions["accept"],
            "rejected": self._actions["reject"],
            "skipped": self._actions["skip"],
            **({"tokens": spent.tokens} if spent.tokens else {}),
            **({"cost": spent.cost} if spent.cost else {}),
        }
        self._progress.advance(PHASE, record.step, figures)

    def _settle(self) -> None:
        """Forget paid answers. A step that is only replayed leaves those of the one that was interrupted."""
        if len(self._journal) > self._journal.replayed:
            self._ledger.settle()
