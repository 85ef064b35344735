"""Figures of a run, line by line: `metrics.jsonl` for what a resumed run repeats exactly, `timings.jsonl` for the rest."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping

from skill_ttrl.runs.folder import RunFolder

Tracker = Callable[[dict[str, float], int], None]
"""Takes finite figures, named `phase/name`, and the step they belong to."""


class MetricsLog:
    """Writes figures into a run folder and hands them on to a tracker.

    Args:
        folder: The run, locked.
        tracker: Called with every line's finite figures; `runs.tracker.open_tracker` makes one.
    """

    def __init__(self, folder: RunFolder, tracker: Tracker | None = None) -> None:
        self._folder = folder
        self._tracker = tracker
        self.steps: dict[str, int] = {}
        """By phase, steps done up to the last one that was logged here."""

    def log(self, phase: str, step: int, figures: Mapping[str, float]) -> None:
        """Append one line to `metrics.jsonl`: only figures that the same seed repeats bit for bit."""
        self._write("metrics.jsonl", phase, step, figures)
        self.steps[phase] = step + 1

    def time(self, phase: str, step: int, figures: Mapping[str, float]) -> None:
        """Append one line to `timings.jsonl`: wall times (seconds) and rates, which differ from run to run."""
        self._write("timings.jsonl", phase, step, figures)

    def _write(self, name: str, phase: str, step: int, figures: Mapping[str, float]) -> None:
        self._folder.append_jsonl(name, [figures_line(phase, step, figures)])
        self.track(phase, figures, step)

    def track(self, phase: str, figures: Mapping[str, float], step: int) -> None:
        """Hand finite figures to the tracker alone: what stands in another file of the run, such as evaluations."""
        if self._tracker is not None:
            finite = {f"{phase}/{key}": float(value) for key, value in figures.items() if math.isfinite(value)}
            self._tracker(finite, step)


def figures_line(phase: str, step: int, figures: Mapping[str, float]) -> str:
    """One JSON text with `phase`, `step` and the figures, keys sorted; NaN and infinities become null."""
    plain = {key: value if math.isfinite(value) else None for key, value in figures.items()}
    return json.dumps({**plain, "phase": phase, "step": step}, sort_keys=True, allow_nan=False)
