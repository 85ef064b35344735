"""Listeners to the loop of an optimisation: its progress, its spending by stage, and several listeners as one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from skill_ttrl.llm.openai.ledger import Ledger, asked_in
from skill_ttrl.optimize.calls import Calls, Item
from skill_ttrl.optimize.epoch import EpochRecord
from skill_ttrl.optimize.journal import Journal
from skill_ttrl.optimize.record import OptimizeState, StepRecord
from skill_ttrl.optimize.types import RolloutResult
from skill_ttrl.optimize.watch import Watch
from skill_ttrl.progress import Progress

PHASE = "optimize"
STAGES = ("rollout", "reflect", "aggregate", "select", "update", "evaluate")


FAILED = ("timeout", "no_answer", "error")
"""Stop reasons of rollouts that failed in the environment or had no answer."""


class StagedCalls(Calls):
    """Calls whose rollouts stand in the ledger under the stage that asks, and which counts those that failed."""

    def roll_out(self, stage: str, document: str, items: Sequence[Item]) -> list[RolloutResult]:
        """See `Calls.roll_out`."""
        with asked_in(stage):
            results = super().roll_out(stage, document, items)
        self.counts[stage].failed += sum(result.extras.get("stop_reason") in FAILED for result in results)
        return results


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
        results = record.rollouts
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
