"""Listeners to the loop of an optimization: its progress, its spending by stage, and several listeners as one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from skill_ttrl.errors import EnvError
from skill_ttrl.llm.openai.ledger import Ledger, asked_in
from skill_ttrl.optimize.calls import Calls, Item, Journal
from skill_ttrl.optimize.record import EpochRecord, OptimizeState, StepRecord, Watch
from skill_ttrl.optimize.scores import graded
from skill_ttrl.optimize.types import RolloutResult
from skill_ttrl.progress import Progress, SilentProgress
from skill_ttrl.stages.optimizing.summary import NAMES

PHASE = "optimize"
STAGES = ("rollout", "reflect", "aggregate", "select", "update", "evaluate")


MARKS = {
    "ungraded": "are graded by nothing: no analyst reads them and no test counts them; where documents are compared they count 0 for each.",
    "rewarded": "were rewarded by the environment, but their answer is not the task's true answer, which decides where info has no 'won'. "
    "If the environment is to decide, have it say info['won'].",
}
"""Marks of results that are worth a word, and what they mean; see `results.as_result`."""
FAILED = ("timeout", "no_answer", "error")
"""Stop reasons of rollouts that failed in the environment or had no answer."""


@dataclass
class StagedCalls(Calls):
    """Calls that record rollouts in the ledger under their stage. Counts failed and ungraded rollouts.

    Args:
        progress: gets one warning about ungraded rollouts, and one about rollouts whose reward and true answer disagree.
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
                text = (
                    f"{len(marked)} of {len(results)} rollouts ({NAMES.get(stage, stage)}, first {marked[0]!r}) {what}"
                )
                self.progress.notice(text, warning=True)
        return results

    def check_results(self, results: Sequence[RolloutResult]) -> None:
        """Raise an error if none of the first results of a run is graded.

        Results of such a batch are not logged, so an empty journal means that none was graded yet.

        Raises:
            EnvError: none of the results is graded.
        """
        played = [result for result in results if result.extras.get("stop_reason") not in FAILED]
        if len(self.journal) or not played or not all(result.ungraded for result in played):
            return
        raise EnvError(
            f"Nothing tells success in any of the first {len(results)} rollouts (first {played[0].id!r}): the environment says that it "
            "cannot grade them (info['graded'] is false), and the tasks have no true answer. Have it say info['won'], true or false, with an "
            "episode's last step, or give the tasks a reference. The same command then begins anew."
        )


class Watches(Watch):
    """Hands everything on to several listeners, in order."""

    def __init__(self, watches: Sequence[Watch]) -> None:
        self._watches = watches

    def begin(self, state: OptimizeState, steps: int) -> None:
        """See `Watch.begin`."""
        for watch in self._watches:
            watch.begin(state, steps)

    def enter(self, step: int, stage: str) -> None:
        """See `Watch.enter`."""
        for watch in self._watches:
            watch.enter(step, stage)

    def step(self, record: StepRecord, state: OptimizeState) -> None:
        """See `Watch.step`."""
        for watch in self._watches:
            watch.step(record, state)

    def epoch(self, record: EpochRecord, state: OptimizeState) -> None:
        """See `Watch.epoch`."""
        for watch in self._watches:
            watch.epoch(record, state)


class ProgressWatch(Watch):
    """Reports steps, stages and scores.

    Args:
        progress: receives the reports.
        ledger: of the run. What a finished step has paid for is in the journal, so the ledger need not save it any longer.
        journal: of the run.
    """

    def __init__(self, progress: Progress, ledger: Ledger, journal: Journal) -> None:
        self._progress, self._ledger, self._journal = progress, ledger, journal
        self._actions: Counter[str] = Counter()

    def begin(self, state: OptimizeState, steps: int) -> None:
        """See `Watch.begin`."""
        self._settle()
        self._progress.notice(f"First document: selection score {state.current_score:.3f}.")
        self._progress.start(PHASE, steps, "step")

    def enter(self, step: int, stage: str) -> None:
        """See `Watch.enter`."""
        self._progress.enter(PHASE, stage)

    def step(self, record: StepRecord, state: OptimizeState) -> None:
        """See `Watch.step`."""
        self._settle()
        self._actions[record.action.partition("_")[0]] += 1
        results = graded(record.rollouts)
        figures = {
            "current": state.current_score,
            "best": state.best_score,
            "success": sum(result.hard for result in results) / len(results) if results else 0.0,
            "accepted": self._actions["accept"],
            "rejected": self._actions["reject"],
            "skipped": self._actions["skip"],
        }
        spent = self._ledger.totals()
        if spent.tokens:
            figures["tokens"] = spent.tokens
        if spent.cost:
            figures["cost"] = spent.cost
        self._progress.advance(PHASE, record.step, figures)

    def _settle(self) -> None:
        """Forget paid answers. A step that is only replayed leaves those of the one that was interrupted."""
        if len(self._journal) > self._journal.replayed:
            self._ledger.settle()
