"""Lines of a run's files under the present names of their fields, whatever version wrote them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from skill_ttrl.metrics import renamed as metric_names
from skill_ttrl.storage.jsonl import read_jsonl
from skill_ttrl.types import old_names

_TYPES: Mapping[str, str] = {
    "trajectories.jsonl": "Trajectory",
    "votes.jsonl": "VoteResult",
    "evaluations.jsonl": "Evaluation",
    "eval_samples.jsonl": "TaskSamples",
}
"""File of a run → type of its lines, as `old_names` knows it."""


def read_lines(path: Path, notes: list[str] | None = None) -> list[dict[str, Any]]:
    """The objects of a run's file; see `read_jsonl`.

    Raises:
        RunFolderError: it cannot be read, or a whole line is no JSON object; names file and line.
    """
    return read_jsonl(path, notes, partial(current_record, path))


def current_record(path: Path, record: dict[str, Any], line: bytes) -> dict[str, Any]:
    """The record of a line of a run's file, which is known by its name, under the present names of its fields."""
    if path.name == "metrics.jsonl":
        return metric_names.with_current_names(record)
    kind = _TYPES.get(path.name)
    if kind is None or not old_names.has_old_names(kind, line):
        return record
    current: dict[str, Any] = old_names.with_current_names(kind, record)
    return current
