"""`skillttrl configs convert`: a config of a published system becomes a file of ours."""

from __future__ import annotations

from pathlib import Path

from skill_ttrl.config.convert import Converted, convert_config
from skill_ttrl.rl.algorithms import build_algorithm
from skill_ttrl.rl.losses import build_loss
from skill_ttrl.storage.files import write_new


def run(path: str | Path, output: str | Path | None = None) -> Converted:
    """Convert a config, and write it whole or not at all.

    Args:
        path: see `convert_config`.
        output: file to write, which must not be there; None: nothing is written.

    Raises:
        ConfigError: no such file, neither of the two systems, or a value that no config of ours can have.
        RunFolderError: `output` exists, or cannot be written.
    """
    found = convert_config(path)
    build_loss(found.config.rl.loss)  # options of both are checked when they are built
    build_algorithm(found.config.rl.algorithm)
    if output is not None:
        write_new(Path(output), found.text())
    return found
