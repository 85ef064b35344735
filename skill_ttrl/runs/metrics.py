"""Figures of a run, line by line: `metrics.jsonl` for what a resumed run repeats exactly, `timings.jsonl` for the rest."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from skill_ttrl.runs.folder import RunFolder
from skill_ttrl.storage.jsonl import read_jsonl

Tracker = Callable[[dict[str, float], int], None]
"""Takes finite figures, named `phase/name`, and the step they belong to."""


class MetricsLog:
    """Writes figures into a run folder, which is locked, and hands every line's finite ones to a tracker (`runs.tracker.open_tracker`)."""

    def __init__(self, folder: RunFolder, tracker: Tracker | None = None) -> None:
        self._folder = folder
        self._tracker = tracker
        self._rows: list[dict[str, Any]] | None = None
        self.steps: dict[str, int] = {}
        """By phase, steps done up to the last one that was logged here."""

    def rows(self, phase: str) -> list[dict[str, Any]]:
        """The lines of `metrics.jsonl` of this phase, oldest first. The file is read once."""
        if self._rows is None:
            self._rows = metric_rows(self._folder.path)
        return [row for row in self._rows if row["phase"] == phase]

    def log(self, phase: str, step: int, figures: Mapping[str, float]) -> None:
        """Append one line to `metrics.jsonl`: only figures that the same seed repeats bit for bit."""
        line = self._write("metrics.jsonl", phase, step, figures)
        if self._rows is not None:
            self._rows.append(json.loads(line))
        self.steps[phase] = step + 1

    def time(self, phase: str, step: int, figures: Mapping[str, float]) -> None:
        """Append one line to `timings.jsonl`: wall times, processor times (seconds) and rates, which differ from run to run."""
        self._write("timings.jsonl", phase, step, figures)

    def _write(self, name: str, phase: str, step: int, figures: Mapping[str, float]) -> str:
        line = figures_line(phase, step, figures)
        self._folder.append_jsonl(name, [line])
        self.track(phase, figures, step)
        return line

    def track(self, phase: str, figures: Mapping[str, float], step: int) -> None:
        """Hand finite figures to the tracker alone: what stands in another file of the run, such as evaluations."""
        if self._tracker is not None:
            finite = {f"{phase}/{key}": float(value) for key, value in figures.items() if math.isfinite(value)}
            self._tracker(finite, step)


def metric_rows(run: Path) -> list[dict[str, Any]]:
    """The lines of a run's `metrics.jsonl`, oldest first; none where no step has ended.

    Raises:
        RunFolderError: the file cannot be read.
    """
    return read_jsonl(run / "metrics.jsonl")


def figures_line(phase: str, step: int, figures: Mapping[str, float]) -> str:
    """One JSON text with `phase`, `step` and the figures, keys sorted; NaN and infinities become null."""
    plain = {key: value if math.isfinite(value) else None for key, value in figures.items()}
    return json.dumps({**plain, "phase": phase, "step": step}, sort_keys=True, allow_nan=False)
