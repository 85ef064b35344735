"""A trained policy found again: from a run folder or one of its checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from skill_ttrl.config import SkillTTRLConfig, load_config
from skill_ttrl.errors import RunFolderError
from skill_ttrl.runs.checkpoint import load_state, newest, verify
from skill_ttrl.runs.folder import RunFolder
from skill_ttrl.skills.retrieval.embed_openai import with_endpoint
from skill_ttrl.stages.setup.open_bank import bank_in_memory, bank_version, read_run_bank
from skill_ttrl.stages.training.run_bank import NoBank, RunBank


@dataclass(frozen=True, slots=True)
class TrainedPolicy:
    """Where a trained policy's weights are, and the config it was trained with."""

    config: SkillTTRLConfig
    weights: Path
    run: Path
    """The run's folder."""

    def bank(self) -> RunBank | NoBank:
        """The skill bank as it was at the checkpoint, for reading.

        Where `skills.bank` is not what the run began with, that other bank takes its place.
        """
        skills, began = with_endpoint(self.config), load_config(self.run / "config.yaml", trust=True).skills
        if skills is not None and (began is None or skills.bank != began.bank):
            return bank_in_memory(skills)
        return read_run_bank(skills, self.run, bank_version(load_state(self.weights)["state"]))


def find_trained(path: str | Path, overrides: Sequence[str] = ()) -> TrainedPolicy:
    """The newest checkpoint of a run, or the checkpoint that `path` itself is.

    Raises:
        RunFolderError: `path` is neither, or the run has no checkpoint yet.
        CheckpointError: the checkpoint is damaged.
    """
    path = Path(path)
    if RunFolder.exists(path):
        checkpoint, _ = newest(RunFolder.open(path, lock=False))
        if checkpoint is None:
            raise RunFolderError(f"{path} has no checkpoint yet.")
        return TrainedPolicy(load_config(path / "config.yaml", overrides), checkpoint.path, path)
    run = path.resolve().parent.parent
    if path.is_dir() and (path / "manifest.json").is_file() and RunFolder.exists(run):
        verify(path)
        return TrainedPolicy(load_config(run / "config.yaml", overrides), path, run)
    raise RunFolderError(
        f"{path} is neither a run folder nor a checkpoint of one. `skillttrl train` makes runs; list yours with: skillttrl "
        "inspect runs."
    )
