"""Trackers of others, through accelerate: TensorBoard, W&B and trackio, with all files in the run folder.

Nothing leaves the machine unless the user asks for it by the tracker's own variables: W&B stays offline without `WANDB_API_KEY` or
`WANDB_MODE`, and its usage reports are off; trackio without `TRACKIO_SPACE_ID` or `TRACKIO_SERVER_URL`.
"""

from __future__ import annotations

import json
import os
import sys
import textwrap
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import Any

from skill_ttrl.runs.episode_logs import Place
from skill_ttrl.runs.folder import RunFolder, SampleRecord, read_run_json
from skill_ttrl.runs.reader import rollout_facts
from skill_ttrl.storage.files import flatten
from skill_ttrl.types import Group, Trajectory

SHOWN = 16
"""Most rollouts that a tracker gets of a step."""


def conversation(played: Trajectory) -> list[dict[str, Any]]:
    """An episode as messages in OpenAI's form: observations are the user's, and results of tools follow their calls."""
    said, answered = list[dict[str, Any]](), ""
    for turn, step in enumerate(played.steps):
        if step.observation != answered:  # else the results of the calls before
            said.append({"role": "user", "content": step.observation})
        text = step.completion.text if step.completion else "" if step.calls else step.action
        said.append({"role": "assistant", "content": text})
        for number, call in enumerate(step.calls):
            called = {"name": call.name, "arguments": call.arguments}
            name = call.id or f"call-{turn}-{number}"
            said[-1 - number].setdefault("tool_calls", []).append({"id": name, "type": "function", "function": called})
            said.append({"role": "tool", "tool_call_id": name, "content": call.result or ""})
        answered = "\n".join(call.result or "" for call in step.calls)
    if played.final_obs not in ("", answered):
        said.append({"role": "user", "content": played.final_obs})
    return said


class RunTracker:
    """An open tracker: call it with figures and their step, show it rollouts, then `close` it."""

    def __init__(self, kind: str, inner: Any) -> None:
        self.kind = kind
        self._inner = inner

    def __call__(self, figures: Mapping[str, float], step: int) -> None:
        """Hand finite figures, named `phase/name`, to the tracker."""
        if self.kind == "wandb":  # W&B drops a step lower than the last one, and each phase counts from 0
            self._inner.log({**figures, **{f"{name.partition('/')[0]}/step": float(step) for name in figures}})
        else:
            self._inner.log(dict(figures), step=step)

    def show(self, phase: str, step: int, group: Group, records: Sequence[SampleRecord]) -> None:
        """Hand over rollouts of one task: to trackio the first `SHOWN` as traces, to TensorBoard the first one as text."""
        if self.kind == "trackio":
            from trackio import Trace

            places = (Place(phase, step, sample) for sample in range(SHOWN))
            rows = zip(places, records, group.trajectories, strict=False)
            traces = [Trace(conversation(each[-1]), metadata=rollout_facts(*each)) for each in rows]
            self._inner.log({f"{phase}/rollouts": traces}, step=step)
        elif self.kind == "tensorboard":
            said = conversation(group.trajectories[0])
            # As code: nothing that a model wrote is Markdown there.
            lines = [f"{each['role']}\n\n{textwrap.indent(each['content'], '    ')}" for each in said]
            self._inner.log({f"{phase}/rollout": "\n\n".join(lines)}, step=step)

    def close(self) -> None:
        """Write out what is buffered."""
        with redirect_stdout(StringIO()):  # stdout is the command's
            # trackio's own forgets the run too, which would else be finished again at exit.
            (import_module("trackio") if self.kind == "trackio" else self._inner).finish()


def open_tracker(kind: str, folder: RunFolder, run_name: str, config: Mapping[str, Any]) -> RunTracker | None:
    """Start the tracker of a run. Where an `accelerate.Accelerator` is used, make that first: the two share their state.

    Args:
        kind: "none", "tensorboard", "wandb" or "trackio" (`run.report_to`).
        folder: The run; events go to its `tracker/`.
        run_name: Project name for W&B; trackio's name of the run, with the run's id.
        config: Settings shown next to the curves (`SkillTTRLConfig.model_dump(mode="json")`).

    Returns:
        The tracker, or None for "none".
    """
    if kind == "none":
        return None
    place = (folder.path / "tracker").resolve()
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
    with redirect_stdout(StringIO()):
        if kind == "tensorboard":  # its name is a folder's
            inner = tracking.TensorBoardTracker(kind, logging_dir=str(place))
        elif kind == "wandb":
            inner = tracking.WandBTracker(run_name, dir=str(place))
        else:
            _import_trackio(place)
            name = f"{run_name}-{read_run_json(folder.path)['id']}"  # a resumed run goes on with its curves
            quiet = {"embed": False, "auto_log_cpu": False, "auto_log_gpu": False}
            inner = tracking.TrackioTracker("skill-ttrl", name=name, resume="allow", **quiet)
        inner.start()
        settings = {name: value for name, value in flatten(config, lists=False).items() if value != {}}
        plain = (str, int, float, bool)  # anything else is given as JSON text
        inner.store_init_configuration(
            {name: value if isinstance(value, plain) else json.dumps(value) for name, value in settings.items()}
        )
    return RunTracker(kind, inner)


def _import_trackio(place: Path) -> None:
    """Import trackio to write into `place`, or where the user's `TRACKIO_DIR` says. It reads that once, so it is imported for each run."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "trackio"]:
        del sys.modules[name]
    given = os.environ.setdefault("TRACKIO_DIR", str(place))
    from trackio import Run

    if given == str(place):
        del os.environ["TRACKIO_DIR"]
    Run._get_username = lambda self: None  # else it asks Hugging Face who the token of this machine belongs to
