"""What is kept line by line while it is made: lines that are whole or not there, and beside them what they were made with.

`SampleFolder` and `TrajectoryFile` rest on it: whoever goes on with what another call began must make the same things.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from skill_ttrl.errors import RunFolderError
from skill_ttrl.storage.files import fsync, length_of_whole_lines, wrap_os_errors, write_all, write_atomic

SCHEMA_VERSION = 1
_SHOWN = 6


def append_whole(file: Path, data: bytes) -> None:
    """Append all of `data` to a file and force it to the disk.

    Raises:
        RunFolderError: the disk is full or the file cannot be written; it is as it was.
    """
    with wrap_os_errors("write", file):
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            before = os.fstat(descriptor).st_size
            try:
                write_all(descriptor, data)
                os.fsync(descriptor)
            except BaseException:
                os.ftruncate(descriptor, before)
                raise
        finally:
            os.close(descriptor)


def cut_torn_line(file: Path) -> int:
    """Cut what a kill left behind the last line break; how many bytes that were.

    Raises:
        RunFolderError: the file cannot be written.
    """
    if not file.is_file():
        return 0
    with wrap_os_errors("repair", file):
        torn = file.stat().st_size - (whole := length_of_whole_lines(file))
        if torn:
            os.truncate(file, whole)
            fsync(file)
    return torn


def new_identity(made_with: Mapping[str, Any]) -> dict[str, Any]:
    """The content of an identity file; what else is noted there decides nothing."""
    return {"schema_version": SCHEMA_VERSION, "made_with": dict(made_with)}


def write_identity(file: Path, identity: Mapping[str, Any]) -> None:
    """Replace an identity file in one step.

    Raises:
        RunFolderError: it cannot be written.
    """
    with wrap_os_errors("write", file):
        write_atomic(file, (json.dumps(identity, indent=2, ensure_ascii=False) + "\n").encode())


def read_identity(file: Path, holds: str) -> dict[str, Any]:
    """The content of an identity file.

    Args:
        file: where it is.
        holds: what it belongs to, for the messages: "/tmp/s holds samples".

    Raises:
        RunFolderError: it cannot be read, or is of another schema.
    """
    try:
        found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        version, _ = found["schema_version"], found["made_with"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunFolderError(f"Cannot read {file}: {type(error).__name__}: {error}.") from None
    if version != SCHEMA_VERSION:
        raise RunFolderError(
            f"{holds} of schema {version!r}; this version reads schema {SCHEMA_VERSION}. Choose another --output."
        )
    return found


def refuse_another(there: Any, here: Mapping[str, Any], holds: str, same: str) -> None:
    """Refuse to go on with what was made with something else.

    Args:
        there: what it was made with.
        here: what it would be made with now.
        holds: as for `read_identity`.
        same: what must be given to go on with it, for the message.

    Raises:
        RunFolderError: the two differ; the differences are named.
    """
    # Through JSON once, as what was written has gone: tuples are lists there.
    old, new = _leaves(there), _leaves(json.loads(json.dumps(here)))
    different = [key for key in sorted(old.keys() | new.keys()) if old.get(key) != new.get(key)]
    if different:
        shown = "; ".join(
            f"{key} {_text(old.get(key))} there, {_text(new.get(key))} here" for key in different[:_SHOWN]
        )
        more = f"; and {len(different) - _SHOWN} more" if len(different) > _SHOWN else ""
        raise RunFolderError(
            f"{holds} of something else: {shown}{more}. Choose another --output, or give the same {same} to go on with it."
        )


def _leaves(value: Any, key: str = "") -> dict[str, Any]:
    """Nested mappings and lists as one mapping, keys joined by points."""
    if isinstance(value, Mapping) and value:
        inner: Iterable[tuple[Any, Any]] = value.items()
    elif isinstance(value, list) and value:
        inner = enumerate(value)
    else:
        return {key: value}
    found: dict[str, Any] = {}
    for name, child in inner:
        found |= _leaves(child, f"{key}.{name}" if key else str(name))
    return found


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
