"""How a stage tells the world where it is, without knowing who listens.

Stages call these methods; the command line draws them, tests and library users pass nothing.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from skill_ttrl.types import Trajectory


class Progress(Protocol):
    """A listener to a run; where it overrides nothing it says nothing."""

    def plan(self, phases: Mapping[str, int]) -> None:
        """The phases that are still to start, by name, and how many units each has left; without any where that is not known."""
        return

    def start(self, phase: str, total: int, unit: str, done: int = 0) -> None:
        """Start a phase of `total` units. After a resume, `done` of them are already finished."""
        return

    def enter(self, phase: str, part: str) -> None:
        """Within the phase, this part of the loop is at work now ("sample", "vote", …)."""
        return

    def advance(self, phase: str, done: int, metrics: Mapping[str, float]) -> None:
        """`done` units in all are finished; `metrics` are the newest figures."""
        return

    def finish(self, phase: str) -> None:
        """The phase has ended."""
        return

    def rollout(self, episode: str, played: Trajectory) -> None:
        """The newest rollout, with its id."""
        return

    def measured(self, metrics: Mapping[str, float]) -> None:
        """An evaluation has ended with these figures."""
        return

    def notice(self, text: str, *, warning: bool = False) -> None:
        """Something the user should read."""
        return


class SilentProgress(Progress):
    """Listens and says nothing."""


SILENT = SilentProgress()


class NoticeCollector(Progress):
    """Collects notices, each with whether it is a warning."""

    def __init__(self) -> None:
        self.notices: list[tuple[str, bool]] = []

    def notice(self, text: str, *, warning: bool = False) -> None:
        """Show a notice to the user (`Progress.notice`)."""
        self.notices.append((text, warning))


OPENING = "open"
"""Phase of `Counting` while an environment does what takes long the first time."""


class Counting:
    """One phase of a `Progress`, for work that tells no more than (things done, things in all).

    The phase begins with the first call, so that work that turns out to be done already shows nothing; where the count falls
    back, other work of the kind begins. `unit` is what is counted, in the singular.
    """

    def __init__(self, progress: Progress, phase: str, unit: str) -> None:
        self._progress, self._phase, self._unit = progress, phase, unit
        self._done: int | None = None

    def __call__(self, done: int, total: int) -> None:
        """`done` of `total` things are finished."""
        if self._done is None or done <= self._done:
            self._progress.start(self._phase, total, self._unit)
        self._done = done
        self._progress.advance(self._phase, done, {})
        if done == total:
            self._progress.finish(self._phase)


@contextmanager
def telling_warnings(progress: Progress) -> Iterator[None]:
    """Report Python warnings of the code in this block, such as unreadable games, as progress notices, each text once.

    Not for code that runs next to other threads: the state of the module `warnings` is process-wide.
    """
    caught: list[warnings.WarningMessage] = []
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            yield
    finally:
        for text in dict.fromkeys(str(each.message) for each in caught):  # what is made twice warns twice
            progress.notice(text, warning=True)
