"""Opening the folder of a run: a new one, or one to resume."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from skill_ttrl.config import SkillTTRLConfig, load_config
from skill_ttrl.errors import RunFolderError
from skill_ttrl.progress import Progress
from skill_ttrl.runs.checkpoint import newest, restore_to_checkpoint
from skill_ttrl.runs.folder import RunFolder, config_differences, summarize_names
from skill_ttrl.stages.inputs.pin import pin_revisions, take_revisions
from skill_ttrl.stages.training.run import ResumePoint
from skill_ttrl.voting import requires

Resume = Literal["auto", "last-good"]


def open_folder(
    config: SkillTTRLConfig, output: str | Path, resume: Resume | None, source: str | None, progress: Progress
) -> tuple[RunFolder, SkillTTRLConfig]:
    """Open and lock the run's folder; also gives the config with its revisions pinned, now or when the resumed run was started.

    Raises:
        RunFolderError: it holds a run and `resume` is None, or it was made for another config.
    """
    if not RunFolder.exists(output):
        pinned = pin_revisions(config)
        return RunFolder.create(output, pinned, source=source), pinned
    if resume is None:
        RunFolder.check_new(Path(output))
    folder = RunFolder.open(output)
    try:
        if not folder.checkpoints.is_dir():
            return folder, _as_it_is_now(folder, config, source, progress)
        folder.belongs_to(_as_long_as(folder, config))
        if config.model.trust_remote_code:
            load_config(folder.path / "config.yaml")  # its revision says which code that is
        return folder, pin_revisions(take_revisions(config, folder.config))
    except BaseException:
        folder.close()
        raise


def _as_long_as(folder: RunFolder, config: SkillTTRLConfig) -> SkillTTRLConfig:
    """The config with the run's own `rl.steps`, where more of them are asked now and the run can have them.

    Raises:
        RunFolderError: they are more, and the steps that are done depend on how many there were to be.
    """
    done, asked = folder.config.rl.steps, config.rl.steps
    if asked <= done or "rl" not in config.phases:
        return config
    way = (
        f"To continue from its result: skillttrl rl {folder.path / 'config.yaml'} --policy {folder.path} --set "
        f"rl.steps={asked - done}"
    )
    if config.rl.lr_scheduler != "constant":
        raise RunFolderError(
            f"{folder.path} was planned for {done} steps and cannot be extended to {asked}: "
            f"rl.lr_scheduler={config.rl.lr_scheduler} has already lowered its learning rate over {done}. {way}"
        )
    if "base_answers" in requires(config.vote.strategy, config.vote.options):
        raise RunFolderError(
            f"{folder.path} was planned for {done} steps and cannot be extended to {asked}: vote.strategy={config.vote.strategy} "
            f"asked the initial policy about the prompts of {done} steps only. {way}"
        )
    return config.model_copy(update={"rl": config.rl.model_copy(update={"steps": done})})


def _as_it_is_now(
    folder: RunFolder, config: SkillTTRLConfig, source: str | None, progress: Progress
) -> SkillTTRLConfig:
    """The config of a run without a checkpoint, which starts again: what was wrong with it may have been mended since.

    Episodes that were collected stay where they are of the same tasks, agent and settings; others are refused by their file.
    """
    changed = config_differences(folder.config, config)
    if not changed:
        return pin_revisions(take_revisions(config, folder.config))
    pinned = pin_revisions(config)
    folder.take_config(pinned, source)
    progress.notice(f"Nothing was trained here yet, so the new config is used: {summarize_names(changed)}.")
    return pinned


def restore_checkpoint(folder: RunFolder, config: SkillTTRLConfig, resume: Resume, progress: Progress) -> ResumePoint:
    """Put the folder back to the checkpoint to resume from; without one, to its start."""
    checkpoint, skipped = newest(folder, resume)
    for text in skipped:
        progress.notice(f"{text} It was skipped.", warning=True)
    state = restore_to_checkpoint(folder, checkpoint)
    if checkpoint is not None:
        planned = {"sft": config.sft.steps, "rl": config.rl.steps}.get(checkpoint.phase)
        over = checkpoint.phase == config.phases[-1] and checkpoint.step == planned
        progress.notice(
            f"Training has ended ({checkpoint.path.name}); only what is missing after it is done."
            if over
            else f"Continuing from {checkpoint.path.name}."
        )
    return ResumePoint(config, checkpoint, state)
