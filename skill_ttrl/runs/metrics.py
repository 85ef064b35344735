"""Lines of a run's append files: figures in `metrics.jsonl` (what a resumed run repeats exactly) and `timings.jsonl`, trajectories and votes.

Trackers (TensorBoard, W&B) go through accelerate, with all files in the run folder. Nothing leaves the machine unless the user asks for
it by the tracker's own variables: W&B stays offline without `WANDB_API_KEY` or `WANDB_MODE`, and its usage reports are off.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from skill_ttrl.errors import MissingDependencyError
from skill_ttrl.rollout.outcome import TaskSamples
from skill_ttrl.runs.folder import RunFolder
from skill_ttrl.storage.files import flatten
from skill_ttrl.storage.jsonl import read_jsonl
from skill_ttrl.types import Group, Labels, VoteResult, to_json

Tracker = Callable[[dict[str, float], int], None]
"""Takes finite figures, named `phase/name`, and the step they belong to."""


class MetricsLog:
    """Writes figures into a run folder, which is locked, and hands every line's finite ones to a tracker (`open_tracker`)."""

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


@dataclass(frozen=True, slots=True)
class SampleRecord:
    """Scores and advantages of one rollout, side by side: recorded, never fed back."""

    pseudo_score: float | None = None
    """Reward, before a KL penalty; None where the algorithm gives scores of its own and did not train on it."""
    original_score: float | None = None
    """1 where its answer is the true one, else 0; None without a label. The meter's."""
    advantages: Sequence[float | None] | None = None
    """Mean advantage of the trained tokens of each of its steps, None for one without; None where none was trained on."""


_RECORD = tuple(field.name for field in fields(SampleRecord))


def trajectory_lines(phase: str, step: int, group: Group, records: Sequence[SampleRecord] = ()) -> list[str]:
    """Lines of `trajectories.jsonl`: each rollout of a group with `phase`, `step`, `sample` (its place in the group) and its record."""
    known = records or [SampleRecord(trajectory.reward) for trajectory in group.trajectories]
    # `asdict` would copy every number of every sample first.
    values = [{name: getattr(record, name) for name in _RECORD} for record in known]
    return [
        _with({"phase": phase, "step": step, "sample": sample, **record}, to_json(trajectory))
        for sample, (trajectory, record) in enumerate(zip(group.trajectories, values, strict=True))
    ]


def vote_line(
    phase: str, step: int, task_id: str, vote: VoteResult, *, correct: bool | None = None, labels: Labels | None = None
) -> str:
    """A line of `votes.jsonl`. `correct` says if the winner is true and `labels` holds both, None without a true answer: they measure
    and are never fed back.
    """
    known = None if labels is None else asdict(labels)
    return _with({"phase": phase, "step": step, "task_id": task_id, "correct": correct, "labels": known}, to_json(vote))


def eval_line(label: str, samples: TaskSamples, right: Sequence[bool | None]) -> str:
    """A line of `eval_samples.jsonl`: a problem's samples of the evaluation `label` under one way of sampling. `scores` are 1 for a
    right sample, 0 for another, None where nothing says which it is.
    """
    return _with(
        {"label": label, "scores": [None if each is None else float(each) for each in right]}, to_json(samples)
    )


def _with(fields: dict[str, object], line: str) -> str:
    """`line`, a JSON object, with `fields` put before its own; what is not finite becomes null."""
    return f"{json.dumps({key: _finite(value) for key, value in fields.items()}, allow_nan=False)[:-1]}, {line[1:]}"


def _finite(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return [_finite(each) for each in value] if isinstance(value, list | tuple) else value


_TRACKERS = {"tensorboard": ("TensorBoardTracker", "logging_dir"), "wandb": ("WandBTracker", "dir")}
"""By package: accelerate's class, and its argument for the folder."""


class RunTracker:
    """An open tracker: call it with figures and their step (it is a `metrics.Tracker`), then `close` it."""

    def __init__(self, kind: str, inner: Any) -> None:
        self.kind = kind
        self._inner = inner

    def __call__(self, figures: dict[str, float], step: int) -> None:
        """Hand figures named `phase/name` to the tracker."""
        if self.kind == "wandb":  # W&B drops a step lower than the last one, and each phase counts from 0
            self._inner.log(figures | {f"{name.partition('/')[0]}/step": float(step) for name in figures})
        else:
            self._inner.log(figures, step=step)

    def close(self) -> None:
        """Write out what is buffered."""
        self._inner.finish()


def open_tracker(kind: str, folder: RunFolder, run_name: str, config: Mapping[str, Any]) -> RunTracker | None:
    """Start the tracker of a run. Where an `accelerate.Accelerator` is used, make that first: the two share their state.

    Args:
        kind: "none", "tensorboard" or "wandb" (`run.report_to`).
        folder: The run; events go to its `tracker/`.
        run_name: Project name for W&B.
        config: Settings shown next to the curves (`SkillTTRLConfig.model_dump(mode="json")`).

    Returns:
        The tracker, or None for "none".

    Raises:
        MissingDependencyError: its package is not installed.
    """
    if kind == "none":
        return None
    check_tracker(kind)
    place = folder.tracker.resolve()
    place.mkdir(exist_ok=True)
    for name, value in {
        "WANDB_MODE": "online" if "WANDB_API_KEY" in os.environ else "offline",
        "WANDB_ERROR_REPORTING": "false",
        "WANDB_DISABLE_CODE": "true",
        "WANDB_SILENT": "true",
    }.items():
        os.environ.setdefault(name, value)
    from accelerate import PartialState, tracking

    PartialState()  # the trackers' own logging asks for it; an Accelerator's is taken where there is one
    owner, argument = _TRACKERS[kind]
    project = kind if kind == "tensorboard" else run_name  # for TensorBoard the name is a folder's
    inner = getattr(tracking, owner)(project, **{argument: str(place)})
    inner.start()
    inner.store_init_configuration(
        {  # what is no plain value is given as JSON text
            key: value if isinstance(value, str | int | float | bool) else json.dumps(value)
            for key, value in flatten(config, lists=False).items()
            if value != {}
        }
    )
    return RunTracker(kind, inner)


def check_tracker(kind: str) -> None:
    """Refuse a tracker that cannot be had here, without importing it; see `open_tracker`.

    Raises:
        MissingDependencyError: its package is not installed.
    """
    if kind != "none" and importlib.util.find_spec(kind) is None:
        raise MissingDependencyError.for_extra(f"The tracker {kind!r}", "trackers")
