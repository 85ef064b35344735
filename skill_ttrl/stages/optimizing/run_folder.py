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
from skill_ttrl.errors import RunFolderError
from skill_ttrl.optimize.calls import JOURNAL
from skill_ttrl.runs.folder import RunFolder
from skill_ttrl.storage.append_log import check_made_with, read_identity

IDENTITY = "optimize.json"
SUMMARY = "summary.json"
Resume = Literal["auto", "never"]


def is_optimization(path: str | Path) -> bool:
    """True if a folder is that of an optimization."""
    return Path(path).joinpath(IDENTITY).is_file()


def check_folder(path: Path, config: SkillTTRLConfig, made_with: Mapping[str, Any], resume: Resume) -> bool:
    """Check that this optimization can begin or continue at `path`; True if it continues. Nothing is written.

    Args:
        path: where it is.
        config: the resolved config.
        made_with: what else the results depend on, as JSON can hold it.
        resume: `auto` continues what is there; `never` refuses it.

    Raises:
        RunFolderError: it is that of another run (the differences are named), or holds something else.
    """
    if resume == "never" or not RunFolder.exists(path):
        RunFolder.check_new(path)
        return False
    folder = RunFolder.open(path, lock=False)
    if is_optimization(path) and (path / JOURNAL).is_file():  # else nothing was finished: another config may start here
        holds = f"{path} holds an optimization"
        there = read_identity(path / IDENTITY, holds)["made_with"]
        folder.belongs_to(config)
        check_made_with(there, made_with, holds, "policy, document, tasks and prompts")
        return True
    if any(folder.sizes().values()) or folder.checkpoints.exists():
        raise RunFolderError(f"{path} holds a run that trains weights, not a document. Choose another --output.")
    return False


@contextmanager
def open_folder(
    path: Path, config: SkillTTRLConfig, made_with: Mapping[str, Any], *, resume: Resume, source: str | None = None
) -> Iterator[RunFolder]:
    """The folder of this optimization, new or as it was left, locked inside the block.

    Args:
        path: see `check_folder`.
        config: see `check_folder`.
        made_with: see `check_folder`.
        resume: see `check_folder`.
        source: text of the user's config file, to be saved.

    Raises:
        RunFolderError: as `check_folder`, another process writes to it, or it cannot be written.
    """
    continues = check_folder(path, config, made_with, resume)
    with RunFolder.open(path) if RunFolder.exists(path) else RunFolder.create(path, config, source=source) as folder:
        try:
            folder.take_config(config)  # limits may differ
            if not continues:
                folder.write_json(IDENTITY, {"schema_version": 1, "made_with": json.loads(json.dumps(made_with))})
            yield folder
        except BaseException:  # leave nothing of an optimization in which nothing was done
            folder.discard_unstarted(IDENTITY)
            raise
