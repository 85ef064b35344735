"""Ending the training of a run: stopping rules, and updates that are skipped too often."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from skill_ttrl.config import RLConfig
from skill_ttrl.errors import TrainingError
from skill_ttrl.rl.update_metrics import SkippedUpdate, dump_skipped
from skill_ttrl.runs.stop_rules import stop_step
from skill_ttrl.stages.training.run import Run
from skill_ttrl.stages.training.state import PhaseState
from skill_ttrl.storage.files import wrap_os_errors, write_atomic

LEFT_OUT = "Updates were skipped because the loss or gradient was not finite"
"""Begins the warning of them, which a run gives once."""
DUMPS = "nonfinite"
"""Folder of a run with the batches of updates that were left out."""
KEPT_DUMPS = 5
"""Newest ones of a phase that stay."""
Rows = Sequence[Mapping[str, Any]]
"""Metrics of each step of a phase, oldest first."""


def remaining_steps(run: Run, state: PhaseState) -> Iterator[int]:
    """The steps to do, up to `rl.steps` or to where a stopping rule ends the run; each has to raise `state.step`."""
    config = run.config.rl
    while state.step < config.steps and stopped_by(run.log.rows(state.phase), config, state.step) is None:
        yield state.step


def stopped_by(rows: Rows, config: RLConfig, finished: int) -> str | None:
    """Why `rl.stop_rule` ends a run with these metrics after at most `finished` steps; None: it continues.

    Only the first `finished` steps count, so a resumed run stops where it stopped before.
    """
    if config.stop_rule is None:
        return None
    stop = stop_step(rows[:finished], config.stop_rule, config.stop_options)
    if stop is None or stop == config.steps:  # it ended by itself
        return None
    return f"The stopping rule {config.stop_rule} ended RL after {stop} of {config.steps} steps."


def skipped_too_often(run: Run, phase: str, *, ended: bool) -> TrainingError | None:
    """Why `phase` cannot go on: its newest updates were all left out, `run.max_skipped_updates` of them or, where the phase has
    `ended`, all that there were. None: it can.
    """
    rows = [row for row in run.log.rows(phase) if "skipped_updates" in row]
    in_a_row = 0
    for row in reversed(rows):
        if row.get("updates", 1 - row["skipped_updates"]):
            break
        in_a_row += int(row["skipped_updates"])
    limit = run.config.run.max_skipped_updates
    every = ended and in_a_row > 0 and in_a_row == sum(row["skipped_updates"] for row in rows)
    if not every and (limit is None or in_a_row < limit):
        return None
    found = "All updates" if every else f"The last {in_a_row} updates (run.max_skipped_updates={limit})"
    return TrainingError(
        f"{found} of the phase {phase} were skipped because loss or gradient was not finite, so nothing is learned. Check the "
        f"loss, the learning rate and runtime.precision (docs/learner.md). Everything so far is saved in {run.folder.path}."
    )


def watch_updates(run: Run, state: PhaseState, step: int) -> TrainingError | None:
    """Record the updates of this step that were left out, and say whether the phase cannot go on after it.

    Their batch is dumped into the run's folder, and the first one is warned of. fp16's loss scaler leaves updates out while it finds
    its scale: these are counted alone.

    Returns:
        The error to end with, after `run.on_nan: stop` or `skipped_too_often`; None: the phase goes on.

    Raises:
        RunFolderError: the dump cannot be written.
    """
    if state.learner is None or not state.learner.skipped:
        return None
    skipped = [each for each in state.learner.skipped if not each.overflow]
    if skipped:
        file = _dump(run, state.phase, step, skipped)
        what = f"{skipped[0].reason()}. The batch is in {file}"
        if run.config.run.on_nan == "stop":
            return TrainingError(
                f"Stopped after step {step} of {state.phase} (run.on_nan=stop): {what}. Everything so far is saved in {run.folder.path}."
            )
        run.warn(
            (f"{LEFT_OUT}, first in step {step} of {state.phase}: {what}. Metric: skipped_updates."),
            once=LEFT_OUT,
        )
    return skipped_too_often(run, state.phase, ended=False)


def _dump(run: Run, phase: str, step: int, skipped: Sequence[SkippedUpdate]) -> str:
    """Write the batch of a step into the run's folder, and remove the oldest beyond `KEPT_DUMPS`; gives the file's name there."""
    folder = run.folder.path / DUMPS
    path = folder / f"{phase}-{step:06d}.pt"
    with wrap_os_errors("write", path):
        folder.mkdir(exist_ok=True)
        write_atomic(path, dump_skipped(skipped))
        for old in sorted(folder.glob(f"{phase}-*.pt"))[:-KEPT_DUMPS]:
            old.unlink()
    return f"{DUMPS}/{path.name}"
