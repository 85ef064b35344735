"""Opening a run: its folder, a new one or one to resume, and its skill bank.

A run's bank lives in `bank/` of its folder. A checkpoint holds the bank's version; resuming cuts the log back to that version, so
a resumed run sees and writes what one that was never stopped would.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from skill_ttrl.config import Phase, RLConfig, SkillsConfig, SkillTTRLConfig, VoteConfig
from skill_ttrl.data.families import bank_family
from skill_ttrl.errors import ConfigError, RunFolderError, SkillBankError, annotate_error, on_error
from skill_ttrl.progress import Progress
from skill_ttrl.runs.checkpoint import newest, restore_to_checkpoint
from skill_ttrl.runs.folder import RunFolder, config_differences, summarize_names
from skill_ttrl.sanitize import escape_terminal
from skill_ttrl.skills.bank import SkillBank
from skill_ttrl.skills.changes import Snapshot, free_names
from skill_ttrl.skills.files import SkillFile, holds_skills, read_file
from skill_ttrl.skills.log import BANK_FILE, LOG_FILE, BankSettings, is_bank
from skill_ttrl.skills.querying import LLMEndpoints
from skill_ttrl.storage.files import write_folder
from skill_ttrl.train.results import Evaluation, read_evaluations
from skill_ttrl.train.run import BEFORE, ResumePoint
from skill_ttrl.train.run_bank import RunBank
from skill_ttrl.train.tasks import pin_revisions
from skill_ttrl.types import Skill
from skill_ttrl.voting import requires

Resume = Literal["auto"]
VOTING: tuple[Phase, ...] = ("rl", "vote_sft")
"""Phases that learn from votes; the evaluation `before` comes before the first of them."""
OF_VOTING = tuple(
    "rl. vote. vote_sft. evolve model.lora rollout.n_votes_ rollout.n_samples_ rollout.temperature rollout.top_".split()
)
"""Beginnings of the settings that do not change the evaluation `before`."""


def open_folder(
    config: SkillTTRLConfig, output: str | Path, source: str | None, progress: Progress
) -> tuple[RunFolder, SkillTTRLConfig]:
    """Open and lock the run's folder; also gives the config with its revisions pinned, now or when the resumed run was started.

    Raises:
        RunFolderError: it was made for another config.
    """
    if not RunFolder.exists(output):
        pinned = pin_revisions(config)
        return RunFolder.create(output, pinned, source=source), pinned
    folder = RunFolder.open(output)
    with on_error(folder.close):
        if folder.checkpoints.is_dir():
            folder.belongs_to(config.model_copy(update={"rl": _as_long_as(folder, config.rl, config.vote)}))
        # Nothing was trained yet, so the config may have changed. Collected episodes are used if tasks, agent and settings are the
        # same; otherwise reading their file is an error.
        elif changed := config_differences(folder.config, config):
            pinned = pin_revisions(config)
            folder.take_config(pinned, source)
            progress.notice(f"Nothing was trained here yet, so the new config is used: {summarize_names(changed)}.")
            return folder, pinned
        return folder, pin_revisions(config, folder.config)


def _as_long_as(folder: RunFolder, rl: RLConfig, vote: VoteConfig) -> RLConfig:
    """The section with the run's own number of steps, where the new config has more and the run can be extended.

    Raises:
        RunFolderError: there are more, and the finished steps depend on how many were planned.
    """
    done, asked = folder.config.rl.steps, rl.steps
    if asked <= done or not folder.config.reinforces:
        return rl
    if rl.lr_scheduler != "constant":
        why = f"rl.lr_scheduler={rl.lr_scheduler} has already lowered its learning rate over {done}"
    elif "base_answers" in requires(*vote.chosen):
        why = f"vote.strategy={vote.chosen[0]} asked the initial policy about the prompts of {done} steps only"
    else:
        return rl.model_copy(update={"steps": done})
    raise RunFolderError(
        f"{folder.path} was planned for {done} steps and cannot be extended to {asked}: {why}. To continue from its result: skillttrl rl "
        f"{folder.path / 'config.yaml'} --policy {folder.path} --set rl.steps={asked - done}"
    )


def reused_baseline(config: SkillTTRLConfig) -> Evaluation | None:
    """The evaluation `before` of the run that `run.baseline` names, which is that of this run too; None: this run measures its own.

    Raises:
        RunFolderError: there is no such run, or it has no such evaluation.
        ConfigError: a setting differs that the evaluation depends on.
    """
    if config.run.baseline is None:
        return None
    with annotate_error(RunFolderError, f"run.baseline={config.run.baseline} has to name a run, or be null."):
        there = RunFolder.open(config.run.baseline, lock=False)
    found = {each.label: each for each in read_evaluations(there.path)}.get(BEFORE)
    if found is None:
        raise RunFolderError(f"run.baseline={there.path}: this run has no evaluation {BEFORE!r} yet.")
    untrained = [
        [*itertools.takewhile(lambda phase: phase not in VOTING, each.phases)] for each in (there.config, config)
    ]
    differences = [
        text
        for text in config_differences(there.config, config)
        if not text.startswith(OF_VOTING) and not (text.startswith("phases ") and untrained[0] == untrained[1])
    ]
    if differences or len(untrained[1]) == len(config.phases):
        why = "; ".join(differences) or "this run has no phase that learns from votes"
        raise ConfigError(
            f"run.baseline={there.path}: its evaluation {BEFORE!r} is not that of this run: {why}. Use the same settings, or remove run.baseline."
        )
    return replace(found, reused_from=found.reused_from or str(there.path))


def restore_checkpoint(folder: RunFolder, config: SkillTTRLConfig, progress: Progress) -> ResumePoint:
    """Put the folder back to the checkpoint to resume from; without one, to its start."""
    checkpoint = newest(folder)
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


BANK = "bank"
WRITER = "run"
"""Marks the updates that a run makes in its own bank (`BankUpdate.writer`)."""
FAMILY = "synthetic:"
DOCUMENT = "document:"


def open_run_bank(
    config: SkillsConfig | None, folder: RunFolder, state: Mapping[str, Any] | None, models: LLMEndpoints | None = None
) -> RunBank | None:
    """Open the bank of a run that is being trained; None where the config has no skills.

    Args:
        config: the run's skills section.
        folder: the run's folder, locked.
        state: of the checkpoint that the run resumes from; None starts a new bank.
        models: language models that may be asked; see `models_of`.

    Raises:
        SkillBankError: what it is to begin with cannot be read, or the bank of a resumed run is missing.
    """
    if config is None:
        return None
    version = None if state is None else bank_version(state)
    path = folder.path / BANK
    first = starting_file(config) if version is None else SkillFile([])
    if not is_bank(path) and version is not None:
        raise SkillBankError(
            f"The run's skill bank at {path} is missing; the run needs its version {version}. Restore the folder, or start a new run."
        )
    kept = keep_edits(path, version or 0)
    if version is None:
        discard_bank(folder)  # of a start that was killed before its first checkpoint
    bank = SkillBank.from_config(config, path, writer=WRITER)
    with on_error(bank.close):
        if version is not None:
            bank.rewind(version)
        elif first.skills:
            bank.import_skills(first.skills, origin=first.origin, reason=f"import {config.bank}")
        _ = bank.retriever  # a wrong embedder must not cost the cold start
        return RunBank(config, bank, models or LLMEndpoints(), [*filter(None, [kept]), *bank.notices])


def keep_edits(path: Path, version: int) -> str:
    """Copy a run's bank before it goes back to `version`, where somebody else has changed it since.

    The run's own updates after its checkpoint need no copy: they are made again.

    Args:
        path: the bank's folder in the run.
        version: version that the run resumes from; 0 starts a new bank.

    Returns:
        What to say of it; empty where nothing is lost.
    """
    if not is_bank(path):
        return ""
    with SkillBank.open(path, read_only=True) as bank:
        edits = [update for update in bank.history(version) if update.writer != WRITER]
        last = bank.version
    if not edits:
        return ""
    there = {each.name for each in path.parent.iterdir()}
    copy = path.with_name(next(free_names(f"{path.name}-version-{last}", "-", there)))
    write_folder(copy, {name: (path / name).read_bytes() for name in (BANK_FILE, LOG_FILE)})
    said = ", ".join(f"{update.version} ({escape_terminal(update.reason)})" for update in edits[:5])
    return (
        f"Something other than the run changed its skill bank: version {said}{' …' * (len(edits) > 5)}. The run continues from "
        f"its own version {version}, without these changes; a copy with them is at {copy}. To train with it, start a new run "
        f"with skills.bank={copy}."
    )


def discard_bank(folder: RunFolder) -> None:
    """Remove the bank of a run that has no checkpoint: its next start begins it anew."""
    if (folder.path / BANK).exists():
        shutil.rmtree(folder.path / BANK)


def read_run_bank(config: SkillsConfig | None, run: Path, version: int | None) -> RunBank | None:
    """Read the bank of a run at one version, to query and measure it. Nothing is written: vectors are made in memory."""
    if config is None:
        return None
    with SkillBank.open(run / BANK, read_only=True) as bank:
        snapshot = bank.snapshot() if version is None else bank.at(version)
    return RunBank(config, SkillBank.from_snapshot(snapshot, BankSettings.from_config(config)))


def bank_in_memory(config: SkillsConfig) -> RunBank:
    """A bank that begins as the config says and is kept nowhere: another one than the run's, to measure with."""
    return RunBank(
        config, SkillBank.from_snapshot(Snapshot.of(0, starting_skills(config)), BankSettings.from_config(config))
    )


def starting_skills(config: SkillsConfig) -> list[Skill]:
    """The skills that `skills.bank` names; see `starting_file`."""
    return starting_file(config).skills


def starting_file(config: SkillsConfig) -> SkillFile:
    """Read the skills that `skills.bank` names: a bank's folder, a file or a folder of skills, a document, or a family's rules."""
    if config.bank is None:
        return SkillFile([])
    if config.bank.startswith(FAMILY):
        return SkillFile(bank_family(config.bank.removeprefix(FAMILY)))
    is_document = config.bank.startswith(DOCUMENT)
    path = Path(config.bank.removeprefix(DOCUMENT))
    if not path.exists():
        raise SkillBankError(f"skills.bank: there is nothing at {path}. Name a bank's folder or an exported file.")
    if is_document:
        return read_file(path, "document")
    if path.is_dir() and not holds_skills(path):
        if RunFolder.exists(path):
            path = path / BANK
        with SkillBank.open(path, read_only=True) as bank:
            return SkillFile(list(bank.snapshot()), bank.snapshot().origin)
    return read_file(path)


def bank_version(state: Mapping[str, Any]) -> int | None:
    """The bank's version in a checkpoint's state."""
    found = state.get("bank_version")
    if found is not None and not isinstance(found, int):
        raise RunFolderError(f"The checkpoint is damaged: its bank_version is {found!r}, not a number.")
    return found
