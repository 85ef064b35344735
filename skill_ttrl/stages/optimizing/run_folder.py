"""The folder of an optimization: a run folder with a journal, and a file that says what its results depend on.

`optimize.json` marks it. Its `made_with` holds what the config does not say: the weights, the first document, the tasks and the prompts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from skill_ttrl.config import SkillTTRLConfig
from skill_ttrl.errors import ConfigError, RunFolderError
from skill_ttrl.optimize.journal import JOURNAL
from skill_ttrl.runs.folder import RunFolder
from skill_ttrl.storage.append_log import check_made_with, read_identity

IDENTITY = "optimize.json"
SUMMARY = "summary.json"
Resume = Literal["auto", "never"]


def is_optimization(path: str | Path) -> bool:
    """True if a folder is that of an optimization."""
    return Path(path).joinpath(IDENTITY).is_file()


@contextmanager
def open_folder(
    path: str | Path,
    config: SkillTTRLConfig,
    made_with: Mapping[str, Any],
    *,
    resume: Resume,
    source: str | None = None,
) -> Iterator[RunFolder]:
    """The folder of this optimization, new or as it was left, locked inside the block.

    Args:
        path: where it is.
        config: the resolved config.
        made_with: what else the results depend on, as JSON can hold it.
        resume: `auto` continues what is there; `never` refuses it.
        source: text of the user's config file, to be saved.

    Raises:
        RunFolderError: it is that of another run (the differences are named), another process writes to it, or it cannot be written.
        ConfigError: `resume` is neither.
    """
    if resume not in ("auto", "never"):
        raise ConfigError(f"--resume is 'auto' or 'never', found {resume!r}.")
    if resume == "auto" and RunFolder.exists(path):
        folder = RunFolder.open(path)
    else:
        folder = RunFolder.create(path, config, source=source)
    with folder:
        try:
            _identify(folder, config, made_with)
            yield folder
        except BaseException:
            _discard_unstarted(folder)
            raise


def _discard_unstarted(folder: RunFolder) -> None:
    """Leave nothing of an optimization in which nothing was done."""
    entries = {entry.name for entry in folder.path.iterdir() if not entry.name.startswith(".")}
    if entries - {"config.yaml.mac", "config_source.yaml.mac"} <= {
        "run.json",
        "config.yaml",
        "config_source.yaml",
        IDENTITY,
    }:
        (folder.path / IDENTITY).unlink(missing_ok=True)
        folder.discard_unstarted()


def _identify(folder: RunFolder, config: SkillTTRLConfig, made_with: Mapping[str, Any]) -> None:
    path = folder.path
    if is_optimization(path) and (path / JOURNAL).is_file():  # else nothing was finished: a mended config begins anew
        there = read_identity(path / IDENTITY, f"{path} holds an optimization")["made_with"]
        folder.belongs_to(config)
        check_made_with(there, made_with, f"{path} holds an optimization", "policy, document, tasks and prompts")
        folder.take_config(config)  # limits may differ
        return
    if any(folder.sizes().values()) or folder.checkpoints.exists():
        raise RunFolderError(f"{path} holds a run that trains weights, not a document. Choose another --output.")
    folder.take_config(config)
    folder.write_json(IDENTITY, {"schema_version": 1, "made_with": json.loads(json.dumps(made_with))})
