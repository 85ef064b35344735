"""Trackers (TensorBoard, W&B, trackio) through accelerate, with all files in the run folder.

Nothing leaves the machine unless the user asks for it by the tracker's own variables: W&B stays offline without
`WANDB_API_KEY` or `WANDB_MODE`, trackio writes into `tracker/` without `TRACKIO_DIR`, and the packages' usage reports are off. To add a tracker, add its package and class to `_TRACKERS`.
"""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Mapping
from typing import Any

from skill_ttrl.errors import MissingDependencyError
from skill_ttrl.runs.folder import RunFolder
from skill_ttrl.storage.append_log import flatten

_TRACKERS = {
    "tensorboard": "TensorBoardTracker",
    "wandb": "WandBTracker",
    "trackio": "TrackioTracker",
}
"""Packages, by which trackers are named, and accelerate's classes."""


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
        kind: "none", "tensorboard", "wandb" or "trackio" (`run.report_to`).
        folder: The run; events go to its `tracker/`.
        run_name: Project or experiment name for W&B and trackio.
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
    _keep_local(str(place))
    from accelerate import PartialState, tracking

    PartialState()  # the trackers' own logging asks for it; an Accelerator's is taken where there is one
    folders = {"tensorboard": "logging_dir", "wandb": "dir"}
    arguments: dict[str, Any] = {folders[kind]: str(place)} if kind in folders else {}
    name = kind if kind == "tensorboard" else run_name  # for TensorBoard the name is a folder's
    inner = getattr(tracking, _TRACKERS[kind])(name, **arguments)
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
    if kind == "none":
        return
    if importlib.util.find_spec(kind) is None:
        raise MissingDependencyError.for_extra(f"The tracker {kind!r}", "trackers")


def _keep_local(place: str) -> None:
    defaults = {
        "WANDB_MODE": "online" if "WANDB_API_KEY" in os.environ else "offline",
        "WANDB_ERROR_REPORTING": "false",
        "WANDB_DISABLE_CODE": "true",
        "WANDB_SILENT": "true",
        "TRACKIO_DIR": place,
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "GRADIO_ANALYTICS_ENABLED": "False",
    }
    for name, value in defaults.items():
        os.environ.setdefault(name, value)
