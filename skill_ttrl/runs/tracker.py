"""Trackers (TensorBoard, W&B) through accelerate, with all files in the run folder.

Nothing leaves the machine unless the user asks for it by the tracker's own variables: W&B stays offline without
`WANDB_API_KEY` or `WANDB_MODE`, and its usage reports are off.
"""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Mapping
from typing import Any

from skill_ttrl.errors import MissingDependencyError
from skill_ttrl.runs.folder import RunFolder
from skill_ttrl.storage.files import flatten

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
