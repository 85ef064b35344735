"""Checkpoints: everything a run needs to go on, as one folder that is either whole or not there.

A checkpoint is written under a hidden name, forced to the disk, described by `manifest.json` (size and SHA-256 of each
file) and then renamed in one step, so a kill at any point leaves only whole ones. It is a Hugging Face model folder
(`from_pretrained` takes its path) with `state.json` (trainer state and the lengths of the append files) and `trainer.pt`
(tensors) next to the model's own files. docs/run-folder.md describes each file.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from skill_ttrl.config import SkillTTRLConfig, load_config
from skill_ttrl.config.section import read_mapping
from skill_ttrl.errors import CheckpointError, RunFolderError
from skill_ttrl.runs.folder import RunFolder, config_differences
from skill_ttrl.storage.files import explain_os_error, fsync
from skill_ttrl.storage.jsonl import parse_json

MANIFEST = "manifest.json"
STATE = "state.json"
TENSORS = "trainer.pt"

_NAME = re.compile(r"(?P<phase>[a-z][a-z0-9_]*)-(?P<step>\d{6,})")
_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.ENOTDIR}
# torch and safetensors report a failed write in their own exceptions; these are the words they use for it.
_FAILED_WRITE = ("os error 28", "os error 27", "No space left", "File too large", "failed writing", "iostream error")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One checkpoint of a run, by its name: it may still be damaged (`verify`)."""

    path: Path
    phase: str
    step: int
    """Steps of the phase that are done."""


def save_checkpoint(
    folder: RunFolder,
    phase: str,
    step: int,
    *,
    write: Callable[[Path], Mapping[str, Any]],
    state: Mapping[str, Any],
    keep: int | None,
    card: str | None = None,
) -> Path:
    """Write `checkpoints/<phase>-<step>` in one step and remove those of the phase that `keep` no longer covers.

    Args:
        folder: The run, locked.
        phase: Phase that was trained ("sft", "rl").
        step: Steps of the phase that are done.
        write: Writes the model and its tokenizer in Hugging Face format into the folder it is given, and gives what `trainer.pt` is
            to hold: optimizer state and the like, as tensors, numbers, strings, lists and dicts of them.
        state: Trainer state that JSON can hold; the lengths of the append files are added.
        keep: Newest checkpoints of this phase that stay; None keeps all.
        card: Text of `README.md`, the model card.

    Returns:
        The folder of the new checkpoint.

    Raises:
        RunFolderError: the disk is full or the folder cannot be written. No earlier checkpoint is touched then.
    """
    import torch

    final = folder.checkpoints / f"{phase}-{step:06d}"
    building = folder.checkpoints / f".tmp-{final.name}-{os.getpid()}"
    try:
        building.mkdir(parents=True)
        tensors = write(building)
        record = {"phase": phase, "step": step, "offsets": folder.sizes(), "state": dict(state)}
        (building / STATE).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
        torch.save(dict(tensors), building / TENSORS)
        if card is not None:
            (building / "README.md").write_text(card, encoding="utf-8")
        _seal(building)
        folder.sync()
        if final.exists():  # of the same step
            _remove(final)
        building.rename(final)
        fsync(folder.checkpoints)
    except BaseException as error:
        shutil.rmtree(building, ignore_errors=True)
        reason = _failed_write(error)
        if reason is None:
            raise
        raise RunFolderError(f"Cannot write the checkpoint {final}: {reason}") from error
    _prune(folder, phase, step, keep)
    return final


def _prune(folder: RunFolder, phase: str, step: int, keep: int | None) -> None:
    """Remove the checkpoints of `phase` before `step` that `keep` does not cover, the one of `step` counted."""
    if keep is not None:
        older = [each for each in list_checkpoints(folder) if each.phase == phase and each.step < step]
        for checkpoint in older[: max(0, len(older) - (max(keep, 1) - 1))]:
            _remove(checkpoint.path)


def list_checkpoints(folder: RunFolder) -> list[Checkpoint]:
    """Checkpoints of a run, oldest first: phases in the order of the run's config, then by step. None is verified."""
    if not folder.checkpoints.is_dir():
        return []
    named = ((entry, _NAME.fullmatch(entry.name)) for entry in folder.checkpoints.iterdir() if entry.is_dir())
    found = [Checkpoint(entry, match["phase"], int(match["step"])) for entry, match in named if match]
    order: dict[str, int] = {phase: place for place, phase in enumerate(folder.config.phases)}
    return sorted(found, key=lambda c: (order.get(c.phase, len(order)), c.phase, c.step))


def edited_settings(run: Path, config: SkillTTRLConfig) -> list[str]:
    """Settings in a run's `config.yaml` that are not those in the model card of its newest checkpoint: somebody changed one of the files."""
    try:
        saved = list_checkpoints(RunFolder(run, None))
        card = (saved[-1].path / "README.md").read_text(encoding="utf-8") if saved else ""
        stated = card.rpartition("```yaml\n")[2].partition("```")[0]
        found = load_config(read_mapping(stated, "the card"), trust=True) if stated else config
    except (OSError, ValueError):  # a card that the user wrote
        return []
    if "collect" in config.phases:  # a run names its own episodes
        found.demonstrations.trajectories = config.demonstrations.trajectories
    return config_differences(found, config)


def read_tokenizer(run: Path) -> Any:
    """The `tokenizers.Tokenizer` of a run's newest checkpoint; None where there is none, or it is of another kind."""
    try:
        from tokenizers import Tokenizer

        return Tokenizer.from_file(str(list_checkpoints(RunFolder(run, None))[-1].path / "tokenizer.json"))
    except Exception:  # `tokenizers` has no type of its own for a file that it cannot read
        return None


def what_is_saved(path: str | Path) -> str:
    """Describe what is saved of a run that ended early, and how to resume it; `path` may hold one run a seed, or not exist."""
    runs = [each for each in (Path(path), *Path(path).glob("seed-*")) if RunFolder.exists(each)]
    if not runs:
        return "Nothing was saved: start again with the same command."
    run = max(runs, key=lambda each: (each / "run.json").stat().st_mtime)
    found = list_checkpoints(RunFolder(run, None))
    if not found:
        return f"There is no checkpoint in {run} yet: start again with the same command and --resume auto."
    return f"Everything up to {found[-1].path.name} is saved in {run}. Resume: the same command with --resume auto."


def verify(path: str | Path) -> None:
    """Compare every file of a checkpoint with its manifest.

    Raises:
        CheckpointError: naming the file that is missing or damaged and what is wrong with it.
    """
    path = Path(path)
    manifest = _read_json(path, MANIFEST)
    whole = all(isinstance(entry, dict) and {"bytes", "sha256"} <= entry.keys() for entry in manifest.values())
    if not whole or STATE not in manifest:
        raise CheckpointError(f"Checkpoint {path} is damaged: {MANIFEST} does not list its files.")
    for name, expected in manifest.items():
        file = path / name
        if not file.is_file():
            raise CheckpointError(f"Checkpoint {path} is damaged: {name} is missing.")
        size = file.stat().st_size
        if size != expected["bytes"]:
            raise CheckpointError(
                f"Checkpoint {path} is damaged: {name} has {size} bytes instead of {expected['bytes']}."
            )
        if _digest(file) != expected["sha256"]:
            raise CheckpointError(f"Checkpoint {path} is damaged: the content of {name} has changed (SHA-256 differs).")


def newest(folder: RunFolder) -> Checkpoint | None:
    """The newest checkpoint; None where the run has none yet.

    A locked run is about to be resumed: leftovers of interrupted writes are removed, and its append files must be as long as they
    were when the checkpoint was saved.

    Raises:
        CheckpointError: it is damaged.
    """
    if folder.locked:
        for left in folder.checkpoints.glob(".tmp-*"):
            shutil.rmtree(left, ignore_errors=True)
    checkpoint = next(reversed(list_checkpoints(folder)), None)
    if checkpoint is not None:
        try:
            verify(checkpoint.path)
            for name, size in load_state(checkpoint.path)["offsets"].items() if folder.locked else ():
                if (held := folder.sizes().get(name, 0)) < size:
                    raise CheckpointError(
                        f"Cannot continue from the checkpoint {checkpoint.path}: {folder.path / name} holds {held} bytes, but it held {size} "
                        "when the checkpoint was saved."
                    )
        except CheckpointError as error:
            raise CheckpointError(f"{error} To continue from the one before it, remove {checkpoint.path}.") from None
    return checkpoint


def restore_to_checkpoint(folder: RunFolder, checkpoint: Checkpoint | None) -> dict[str, Any]:
    """Put the run folder back to where it was when `checkpoint` was saved, and give its trainer state.

    The append files are cut. Checkpoints that a run killed just after saving had still to remove are removed. With None everything is
    emptied: the run starts fresh.

    Raises:
        CheckpointError: `state.json` cannot be read.
    """
    state = load_state(checkpoint.path) if checkpoint else {"offsets": {}, "state": {}}
    folder.truncate_to(state["offsets"])
    if checkpoint is not None:
        _prune(folder, checkpoint.phase, checkpoint.step, folder.config.run.save_total_limit)
    saved: dict[str, Any] = state["state"]
    return saved


def load_state(path: str | Path) -> dict[str, Any]:
    """Content of a checkpoint's `state.json`: phase, step, offsets (bytes of each append file), and state.

    Raises:
        CheckpointError: it is not there or cannot be read.
    """
    return _read_json(Path(path), STATE, required=("phase", "step", "offsets", "state"))


def load_tensors(path: str | Path) -> dict[str, Any]:
    """Content of a checkpoint's `trainer.pt` (see `save_checkpoint`), on the CPU. Only tensors and plain data are unpickled, never code.

    Raises:
        CheckpointError: `trainer.pt` is not there or cannot be read.
    """
    import pickle

    import torch

    try:
        loaded: dict[str, Any] = torch.load(Path(path) / TENSORS, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, ValueError, pickle.UnpicklingError) as error:
        first_line = str(error).partition("\n")[0]
        raise CheckpointError(f"Checkpoint {path} is damaged: cannot read {TENSORS} ({first_line}).") from None
    return loaded


def _seal(building: Path) -> None:
    """Write the manifest and force every file and folder of a checkpoint to the disk."""
    files = sorted(file for file in building.rglob("*") if file.is_file())
    manifest = {
        str(file.relative_to(building)): {"bytes": file.stat().st_size, "sha256": _digest(file)} for file in files
    }
    (building / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    for entry in [*building.rglob("*"), building]:
        fsync(entry)


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _read_json(path: Path, name: str, required: tuple[str, ...] = ()) -> dict[str, Any]:
    try:
        data = parse_json((path / name).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path} is not a complete checkpoint: {name} is missing.") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"Checkpoint {path} is damaged: cannot read {name} ({error}).") from None
    if not isinstance(data, dict) or any(key not in data for key in required):
        raise CheckpointError(
            f"Checkpoint {path} is damaged: {name} does not hold {', '.join(required) or 'an object'}."
        )
    return data


def _remove(path: Path) -> None:
    """Remove a checkpoint so that a kill in between leaves no half of one under its name."""
    hidden = path.with_name(f".tmp-old-{path.name}")
    path.rename(hidden)
    shutil.rmtree(hidden, ignore_errors=True)


def _failed_write(error: BaseException) -> str | None:
    """Why the disk refused, when that is what `error`, or one it came from, is about."""
    cause: BaseException | None = error if isinstance(error, Exception) else None
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in _DISK:
            return explain_os_error(cause)
        if any(words in str(cause) for words in _FAILED_WRITE):
            first_line = str(cause).partition("\n")[0]
            return f"the disk refused it ({first_line}). Free some space, or choose another --output."
        cause = cause.__context__
    return None


_REWARDS = {
    "majority": "agreement with the majority answer of the samples: **no labels were used**",
    "verify": "whether the answer satisfies the problem's `check`: **no labels were used**",
    "label": "agreement with the true answer: a control, **labels were used**",
    "random": "a coin toss: a control that should teach nothing",
    "format": "whether an answer was given at all: a control",
    "env": "the environment's own return",
}


def model_card(config: SkillTTRLConfig, *, phase: str, step: int, merged: bool = False) -> str:
    """A Hugging Face model card: YAML front matter, what the model is, how it was trained, the config.

    Args:
        config: The run's resolved config.
        phase: Phase of the checkpoint ("sft", "rl").
        step: Steps of it that are done.
        merged: The adapters that the config asks for are folded into the weights.

    Returns:
        Markdown text.
    """
    path, builtin, lora = config.model.path, config.model.path == "builtin", config.model.lora is not None
    front: dict[str, object] = {"library_name": "peft" if lora and not merged else "transformers"}
    front["pipeline_tag"] = "text-generation"
    if not builtin and ":" not in path and not Path(path).exists():  # a name of the hub
        front["base_model"] = path
    own = ["reinforcement-learning", "grpo", *(["ttrl"] if config.rl.reward == "majority" else [])]
    front["tags"] = ["skill-ttrl", *(["self-training"] if "vote_sft" in config.phases else own)]
    origin = f"`{path}`" + (f" at revision `{config.model.revision}`" if config.model.revision else "")
    if lora:
        origin += "; its LoRA adapters are folded in" if merged else " and holds LoRA adapters for it"
    if builtin:
        origin = "a small Qwen2 with random initial weights"
    trained = f"Phases: {', '.join(f'`{each}`' for each in config.phases)}; this checkpoint is of `{phase}`."
    if phase in ("rl", "vote_sft"):
        data = config.train_source.name if config.train_source else config.env.id
        trained += f" Samples of `{data}`. Reward: {_REWARDS.get(config.rl.reward, f'`{config.rl.reward}`')}."
    lines = [
        *("---", yaml.safe_dump(front, sort_keys=False).rstrip(), "---", "", f"# {config.name}", ""),
        *(f"A checkpoint of Skill-TTRL after {step} steps of the phase `{phase}`. It started from {origin}.", ""),
        *("## Training", "", trained, ""),
        "The weights are specialized on the training tasks. Test-time training reinforces the majority answer. Where the majority is "
        "wrong, the model becomes more confident in a wrong answer.",
        *("", "## Config", "", "Differences from the defaults:", ""),
        *("```yaml", config.to_yaml(sparse=True).rstrip(), "```"),
    ]
    return "\n".join(lines) + "\n"
