"""How a stage tells the world where it is, without knowing who listens.

Stages call these methods; the command line draws them, tests and library users pass nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class Progress(Protocol):
    """A listener to a run."""

    def start(self, phase: str, total: int, unit: str, done: int = 0) -> None:
        """A phase of `total` units begins, or goes on after a resume with `done` of them behind it."""
        ...

    def enter(self, phase: str, part: str) -> None:
        """Within the phase, this part of the loop is at work now ("sample", "vote", …)."""
        ...

    def advance(self, phase: str, done: int, metrics: Mapping[str, float]) -> None:
        """`done` units in all are finished; `metrics` are the newest figures."""
        ...

    def finish(self, phase: str) -> None:
        """The phase has ended."""
        ...

    def notice(self, text: str, *, warning: bool = False) -> None:
        """Something the user should read."""
        ...


class SilentProgress:
    """Listens and says nothing."""

    def start(self, phase: str, total: int, unit: str, done: int = 0) -> None:
        """See `Progress.start`."""

    def enter(self, phase: str, part: str) -> None:
        """See `Progress.enter`."""

    def advance(self, phase: str, done: int, metrics: Mapping[str, float]) -> None:
        """See `Progress.advance`."""

    def finish(self, phase: str) -> None:
        """See `Progress.finish`."""

    def notice(self, text: str, *, warning: bool = False) -> None:
        """See `Progress.notice`."""
