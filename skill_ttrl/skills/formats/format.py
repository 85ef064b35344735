"""Format of skill files: a name and two functions. `files` lists the built-in ones and finds a user's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skill_ttrl.skills.formats.records import SkillFile
from skill_ttrl.skills.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class FileFormat:
    """Skills as one file of text."""

    name: str
    read: Callable[[str, str], SkillFile]
    """(text of the file, its name for messages) -> what it holds; a `SkillBankError` refuses the file."""
    write: Callable[[Snapshot], str]
    """A version's skills as the text of a file."""
    suffixes: tuple[str, ...] = ()
    """Endings of names that mean this format, in lower case."""
    recognises: Callable[[Any], bool] | None = None
    """True for the content of a `.json` file of this format, which is then read by it."""


@dataclass(frozen=True, slots=True)
class FolderFormat:
    """Skills as a folder of files."""

    name: str
    read: Callable[[Path], SkillFile]
    """Read a folder; a `SkillBankError` refuses it."""
    write: Callable[[Snapshot], Mapping[str, str]]
    """Relative paths with `/` and the texts of the files."""
