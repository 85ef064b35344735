"""Listeners to an optimization."""

from __future__ import annotations

from typing import Protocol

from skill_ttrl.optimize.epoch import EpochRecord
from skill_ttrl.optimize.record import OptimizeState, StepRecord


class Watch(Protocol):
    """A listener to the loop; where it overrides nothing it does nothing."""

    def begin(self, state: OptimizeState, steps: int) -> None:
        """The first document is evaluated, and `steps` steps follow."""
        return

    def enter(self, step: int, stage: str) -> None:
        """A stage of a step begins."""
        return

    def step(self, record: StepRecord, state: OptimizeState) -> None:
        """A step is finished. May raise to leave."""
        return

    def epoch(self, record: EpochRecord, state: OptimizeState) -> None:
        """Two epochs were compared, at the end of the later one."""
        return


class Silent(Watch):
    """Listens and does nothing."""
