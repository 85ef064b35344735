"""JSON Lines as a run writes them: a last line without its line break was torn by a kill, or is being written now."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from skill_ttrl.errors import DataError, RunFolderError, SkillTTRLError


def read_jsonl(
    path: Path,
    notes: list[str] | None = None,
    convert: Callable[[dict[str, Any], bytes], dict[str, Any]] = lambda record, line: record,
) -> list[dict[str, Any]]:
    """The objects of a file, none where there is no file; a torn last line is left out, and noted in `notes`.

    `convert` takes each object and its line, and returns the object to hand out.

    Raises:
        RunFolderError: it cannot be read, or a whole line is no JSON object; names file and line.
    """
    records: list[dict[str, Any]] = []
    for number, line in _whole_lines(path, notes, RunFolderError) if path.exists() else ():
        try:
            record = json.loads(line)
        except ValueError as error:
            raise RunFolderError(f"{path}, line {number} is not JSON: {error}.") from None
        if not isinstance(record, dict):
            raise RunFolderError(f"{path}, line {number}: expected an object, found {type(record).__name__}.")
        records.append(convert(record, line))
    return records


def whole_lines(path: Path, notes: list[str]) -> Iterator[tuple[str, bytes]]:
    """Lines with their places ("file:3"), one after another; a torn last one is left out and noted, blank ones are skipped.

    Raises:
        DataError: the file cannot be read.
    """
    return ((f"{path}:{number}", line) for number, line in _whole_lines(path, notes, DataError) if not line.isspace())


def first_keys(path: Path) -> set[str]:
    """Fields of the first record of a JSONL file; of anything else nothing, and reading it will say what is wrong."""
    if path.suffix != ".jsonl" or not path.is_file():
        return set()
    with path.open("rb") as stream:
        try:
            found = json.loads(stream.readline())
        except (ValueError, RecursionError):
            return set()
    return set(found) if isinstance(found, dict) else set()


def _whole_lines(path: Path, notes: list[str] | None, fault: type[SkillTTRLError]) -> Iterator[tuple[int, bytes]]:
    try:
        with path.open("rb") as stream:
            for number, line in enumerate(stream, 1):
                if line.endswith(b"\n"):
                    yield number, line
                elif notes is not None:
                    notes.append(
                        f"{path}: its last line is torn (a run is writing it, or was killed) and was left out."
                    )
    except OSError as error:
        raise fault(f"Cannot read {path}: {error.strerror}.") from None
