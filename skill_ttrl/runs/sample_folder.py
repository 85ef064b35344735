"""A folder of samples that are drawn chunk by chunk: whole chunks or nothing, whatever stops the drawing.

`samples.json` says what the samples are of, and how many lines there will be; `samples.jsonl` holds them, one line a
problem and way of sampling, in a fixed order. As the order is fixed, the number of whole lines says which chunks are whole;
a part of a chunk that a kill left behind is cut when the folder is opened again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from skill_ttrl.errors import RunFolderError
from skill_ttrl.runs.files import (
    LOCK_FILE,
    acquire_lock,
    explaining,
    fsync,
    length_of_whole_lines,
    release_lock,
    write_all,
    write_atomic,
)

SAMPLES = "samples.jsonl"
IDENTITY = "samples.json"
SCHEMA_VERSION = 1
_SHOWN = 6


class SampleFolder:
    """An open folder of samples; a context manager that frees its lock. Make one with `open`."""

    def __init__(self, path: Path, lock: int, identity: dict[str, Any]) -> None:
        self.path = path
        self._lock: int | None = lock
        self._identity = identity

    @staticmethod
    def exists(path: str | Path) -> bool:
        """Whether samples are kept at `path`."""
        return Path(path).joinpath(IDENTITY).is_file()

    @classmethod
    def open(cls, path: str | Path, made_with: Mapping[str, Any]) -> SampleFolder:
        """Begin a folder, or go on with one that was begun with the same `made_with`.

        Args:
            path: New, empty, or a folder of samples.
            made_with: All that the samples depend on, as JSON can hold it.

        Raises:
            RunFolderError: the folder holds something else or samples of something else (the differences are named), another
                process is in it, or it cannot be written.
        """
        path = Path(path)
        if path.exists() and not path.is_dir():
            raise RunFolderError(f"Cannot keep samples in {path}: it is a file. Choose another --output.")
        if not cls.exists(path):
            foreign = sorted(entry.name for entry in path.iterdir() if not _ours(entry.name)) if path.exists() else []
            if foreign:
                raise RunFolderError(
                    f"{path} is not empty and no folder of samples (found: {', '.join(foreign[:5])}). Choose another --output."
                )
        with explaining("make", path):
            path.mkdir(parents=True, exist_ok=True)
        folder = cls(path, acquire_lock(path), {"schema_version": SCHEMA_VERSION, "made_with": dict(made_with)})
        try:
            if cls.exists(path):
                folder._identity = read_identity(path)
                _refuse_another(path, folder._identity["made_with"], made_with)
            else:
                folder._write_identity()
            folder._cut_torn_line()
        except BaseException:
            folder.close()
            raise
        return folder

    @property
    def complete(self) -> bool:
        """Whether every line is there."""
        return self._identity.get("lines") == len(self.lines())

    def lines(self) -> list[bytes]:
        """The lines that there are."""
        file = self.path / SAMPLES
        return file.read_bytes().splitlines(keepends=True) if file.is_file() else []

    @property
    def facts(self) -> Any:
        """What was noted of the samples when they were begun (`begin`); None before."""
        return self._identity.get("facts")

    def begin(self, chunks: Sequence[int], facts: Any = None) -> list[bytes]:
        """Say how many lines each chunk has, cut what is no whole chunk, and give the lines that stay.

        Args:
            chunks: Lines of each chunk, in order.
            facts: Noted in `samples.json`: what is known of the samples and decides nothing.

        Raises:
            RunFolderError: there are more lines than there can be.
        """
        lines = self.lines()
        if len(lines) > sum(chunks):
            raise RunFolderError(
                f"{self.path / SAMPLES} has {len(lines)} lines, at most {sum(chunks)} belong there. The file was changed; "
                "remove the folder and draw again."
            )
        found = {"lines": sum(chunks), "facts": facts}
        if any(self._identity.get(name) != value for name, value in found.items()):
            self._identity |= found
            self._write_identity()
        whole = 0
        for count in chunks:
            if whole + count > len(lines):
                break
            whole += count
        if whole < len(lines):
            with explaining("repair", self.path / SAMPLES):
                os.truncate(self.path / SAMPLES, sum(len(line) for line in lines[:whole]))
        return lines[:whole]

    def append(self, lines: Iterable[str]) -> None:
        """Append one chunk and force it to the disk.

        Raises:
            RunFolderError: the disk is full or the folder cannot be written; the file is as it was.
        """
        data = "".join(f"{line}\n" for line in lines).encode()
        file = self.path / SAMPLES
        with explaining("write", file):
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

    def write_text(self, name: str, text: str) -> Path:
        """Replace a whole file of the folder in one step.

        Raises:
            RunFolderError: the disk is full or the folder cannot be written.
        """
        with explaining("write", self.path / name):
            write_atomic(self.path / name, text.encode())
        return self.path / name

    def close(self) -> None:
        """Free the lock. Safe to call twice."""
        if self._lock is not None:
            release_lock(self.path, self._lock)
            self._lock = None

    def __enter__(self) -> SampleFolder:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _write_identity(self) -> None:
        self.write_text(IDENTITY, json.dumps(self._identity, indent=2, ensure_ascii=False) + "\n")

    def _cut_torn_line(self) -> None:
        file = self.path / SAMPLES
        if file.is_file():
            with explaining("repair", file):
                whole = length_of_whole_lines(file)
                if whole < file.stat().st_size:
                    os.truncate(file, whole)
                    fsync(file)


def read_facts(path: str | Path) -> Any:
    """What was noted of the samples in a folder; None where nothing was.

    Raises:
        RunFolderError: its `samples.json` cannot be read.
    """
    return read_identity(Path(path)).get("facts") if SampleFolder.exists(path) else None


def _ours(name: str) -> bool:
    return name == LOCK_FILE or (name.startswith(".") and ".tmp-" in name)


def read_identity(path: Path) -> dict[str, Any]:
    """The content of `samples.json`: `made_with`, and once it is known `lines` and `facts`.

    Raises:
        RunFolderError: it cannot be read, or is of another schema.
    """
    file = path / IDENTITY
    try:
        found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        version, _ = found["schema_version"], found["made_with"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunFolderError(f"Cannot read {file}: {type(error).__name__}: {error}.") from None
    if version != SCHEMA_VERSION:
        raise RunFolderError(
            f"{path} holds samples of schema {version!r}; this version reads schema {SCHEMA_VERSION}. Choose another --output."
        )
    return found


def _refuse_another(path: Path, there: Any, here: Mapping[str, Any]) -> None:
    # Through JSON once, as what was written has gone: tuples are lists there.
    old, new = _leaves(there), _leaves(json.loads(json.dumps(here)))
    different = [key for key in sorted(old.keys() | new.keys()) if old.get(key) != new.get(key)]
    if different:
        shown = "; ".join(
            f"{key} {_text(old.get(key))} there, {_text(new.get(key))} here" for key in different[:_SHOWN]
        )
        more = f"; and {len(different) - _SHOWN} more" if len(different) > _SHOWN else ""
        raise RunFolderError(
            f"{path} holds samples of something else: {shown}{more}. Choose another --output, or give the same model, "
            "data and settings to go on with it."
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
