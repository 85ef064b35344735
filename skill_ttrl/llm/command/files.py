"""Files that a command line names: the program's own code, for the most part."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from skill_ttrl.config import CommandConfig

MOST_BYTES = 64 << 20
"""Larger files are known by their size alone."""


def names_file(argument: str, folder: str = "") -> bool:
    """True if an argument names a file by a path (`agent.py`, `bin/agent`), seen from a folder."""
    return bool(Path(argument).suffix or "/" in argument) and Path(folder, argument).is_file()


def file_digests(config: CommandConfig) -> dict[str, str]:
    """The content of each file among the arguments, and of a program that is a script named by a path.

    An argument is looked up from here, as for a run of the program, else in `command.cwd`.
    """
    found = {each: path for each in config.argv[1:] if (path := _found(each, config.cwd)) is not None}
    program = config.argv[0]
    if "/" in program and os.path.isfile(program) and _is_script(Path(program)):
        found[program] = Path(program)
    return {name: _digest(path) for name, path in sorted(found.items())}


def _found(argument: str, cwd: str | None) -> Path | None:
    if names_file(argument):
        return Path(argument)
    if cwd is not None and Path(cwd, argument).is_file():
        return Path(cwd, argument)
    return None


def _is_script(path: Path) -> bool:
    # An interpreter is not one: an update of the system is no other agent.
    try:
        with path.open("rb") as stream:
            return stream.read(2) == b"#!"
    except OSError:
        return False


def _digest(path: Path) -> str:
    try:
        if (size := path.stat().st_size) > MOST_BYTES:
            return f"{size} bytes"
        with path.open("rb") as stream:
            return f"sha256:{hashlib.file_digest(stream, 'sha256').hexdigest()[:32]}"
    except OSError as error:
        return f"unreadable: {error.strerror}"
