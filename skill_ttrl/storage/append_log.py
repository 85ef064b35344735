"""Append-only JSONL with crash recovery, and a sidecar file with the settings that the lines were made with.

A line is written completely or not at all. `open` continues only what was made with the same things.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from skill_ttrl.errors import RunFolderError
from skill_ttrl.storage.files import (
    Locked,
    acquire_lock,
    fsync,
    length_of_whole_lines,
    wrap_os_errors,
    write_all,
    write_atomic,
)
from skill_ttrl.storage.jsonl import parse_json
from skill_ttrl.types import first_problem, from_json

T = TypeVar("T")

SCHEMA_VERSION = 1
_SHOWN = 6


def append_whole(file: Path, data: bytes, *, durable: bool = True) -> None:
    """Append all of `data` to a file or nothing; force it to the disk where it must be `durable`.

    Raises:
        RunFolderError: the disk is full or the file cannot be written; it is as it was.
    """
    with wrap_os_errors("write", file):
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            before = os.fstat(descriptor).st_size
            try:
                write_all(descriptor, data)
                if durable:
                    os.fsync(descriptor)
            except BaseException:
                os.ftruncate(descriptor, before)
                raise
        finally:
            os.close(descriptor)


def cut_torn_line(file: Path) -> int:
    """Cut what a kill left behind the last line break; return the number of bytes cut.

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


class AppendLog(Locked):
    """An open log, locked for this process. A context manager that frees the lock.

    Subclasses say where its files are and what they hold.

    Args:
        path: the log, as messages name it.
        file: its lines.
        identity_file: what they were made with, and `facts` that decide nothing.
        made_with: all that the lines depend on, as JSON can hold it.
        lock: the lock file; None: `.lock` in the folder `path`.

    Raises:
        RunFolderError: it was made with something else (the differences are named), another process writes to it, or it cannot
            be written.
    """

    holds = "lines"

    def __init__(
        self, path: Path, file: Path, identity_file: Path, made_with: Mapping[str, Any], lock: Path | None = None
    ) -> None:
        self.path, self.file, self.identity_file = path, file, identity_file
        self.cut = 0
        """Bytes of a torn last line that were cut when it was opened."""
        self.identity: dict[str, Any] = {"schema_version": SCHEMA_VERSION, "made_with": dict(made_with)}
        self._lock = acquire_lock(path, lock)
        try:
            if identity_file.is_file():
                self.identity = read_identity(identity_file, holds := f"{path} holds {self.holds}")
                check_made_with(self.identity["made_with"], made_with, holds)
                self.cut = cut_torn_line(file)
            elif file.is_file() and file.stat().st_size:
                raise RunFolderError(
                    f"{path} exists, but {identity_file.name}, which says what it was made with, is missing, so it cannot be continued. "
                    "Choose another --output, or remove it."
                )
            else:
                self._write_identity()
        except BaseException:
            self.close()
            raise

    def lines(self) -> Iterator[bytes]:
        """The lines written so far, one after another: files are larger than memory."""
        if self.file.is_file():
            with wrap_os_errors("read", self.file), self.file.open("rb") as stream:
                yield from stream

    def read(self, kind: type[T], expected: Sequence[str] | None, name_of: Callable[[T], str]) -> Iterator[T]:
        """Read the lines back, each checked to be the one that belongs there.

        Args:
            kind: type of a line.
            expected: names of all lines in their order; None: whatever they are.
            name_of: the name of a line that was read.

        Raises:
            RunFolderError: the file was changed; names the line.
        """
        wanted = None if expected is None else [*expected]
        for number, line in enumerate(self.lines(), 1):
            try:
                found = from_json(kind, line)
                name = name_of(found)
                problem = "" if wanted is None or wanted[number - 1 : number] == [name] else f"it is of {name}"
            except ValidationError as error:
                problem = first_problem(error)
            if problem:
                raise RunFolderError(
                    f"{self.file}:{number} is not what was written there: {problem}. Remove {self.path} and start again."
                )
            yield found

    def append(self, lines: Iterable[str]) -> None:
        """Append lines, given without their line breaks, and force them to the disk: all of them or none.

        Raises:
            RunFolderError: the disk is full or the file cannot be written; it is as it was.
        """
        append_whole(self.file, "".join(f"{line}\n" for line in lines).encode())

    def note(self, **fields: Any) -> None:
        """Note what is known of the lines and decides nothing, such as `facts`."""
        if any(self.identity.get(name, self) != value for name, value in fields.items()):
            self.identity |= fields
            self._write_identity()

    def _write_identity(self) -> None:
        with wrap_os_errors("write", self.identity_file):
            write_atomic(self.identity_file, (json.dumps(self.identity, indent=2, ensure_ascii=False) + "\n").encode())


def read_identity(file: Path, holds: str) -> dict[str, Any]:
    """Read an identity file: `made_with`, and what was noted. Messages begin with `holds`: "/tmp/s holds samples".

    Raises:
        RunFolderError: it cannot be read, or is of another schema.
    """
    try:
        found: dict[str, Any] = parse_json(file.read_text(encoding="utf-8"))
        version, _ = found["schema_version"], found["made_with"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunFolderError(f"Cannot read {file}: {type(error).__name__}: {error}.") from None
    if version != SCHEMA_VERSION:
        raise RunFolderError(
            f"{holds} of schema {version!r}; this version reads schema {SCHEMA_VERSION}. Choose another --output."
        )
    return found


def check_made_with(there: Any, here: Mapping[str, Any], holds: str) -> None:
    """Check that what is there was made with the same things as what is made here.

    Args:
        there: `made_with` of the identity file.
        here: the present one.
        holds: begins the message: "/tmp/s holds samples".

    Raises:
        RunFolderError: it was not; names the differences.
    """
    # Through JSON once, as what was written has gone: tuples are lists there.
    old, new = flatten(there), flatten(json.loads(json.dumps(here)))
    different = [key for key in sorted(old.keys() | new.keys()) if old.get(key) != new.get(key)]
    if different:
        shown = [f"{key} {_text(old.get(key))} there, {_text(new.get(key))} here" for key in different]
        more = f"; and {len(different) - _SHOWN} more" if len(different) > _SHOWN else ""
        raise RunFolderError(
            f"{holds} of something else: {'; '.join(shown[:_SHOWN])}{more}. Choose another --output, or give the same model, data and "
            "settings to continue it."
        )


def flatten(value: Any, key: str = "", *, lists: bool = True) -> dict[str, Any]:
    """Nested mappings, and lists, as one mapping; keys joined by points. Empty ones stay as they are."""
    if isinstance(value, Mapping) and value:
        inner: Iterable[tuple[Any, Any]] = value.items()
    elif lists and isinstance(value, list) and value:
        inner = enumerate(value)
    else:
        return {key: value}
    found: dict[str, Any] = {}
    for name, child in inner:
        found |= flatten(child, f"{key}.{name}" if key else str(name), lists=lists)
    return found


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
