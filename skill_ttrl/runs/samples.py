"""A folder of samples that are drawn chunk by chunk: whole chunks or nothing, whatever stops the drawing.

`samples.json` says what the samples are of, and how many lines there will be; `samples.jsonl` holds them, one line a
problem and way of sampling, in a fixed order. As the order is fixed, the number of whole lines says which chunks are whole;
a part of a chunk that a kill left behind is cut when the folder is opened again.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from skill_ttrl.errors import RunFolderError
from skill_ttrl.storage import append_log as kept
from skill_ttrl.storage.files import LOCK_FILE, acquire_lock, release_lock, wrap_os_errors, write_atomic

SAMPLES = "samples.jsonl"
IDENTITY = "samples.json"


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
        with wrap_os_errors("make", path):
            path.mkdir(parents=True, exist_ok=True)
        folder = cls(path, acquire_lock(path), kept.new_identity(made_with))
        try:
            if cls.exists(path):
                folder._identity = read_identity(path)
                kept.refuse_another(
                    folder._identity["made_with"], made_with, f"{path} holds samples", "model, data and settings"
                )
            else:
                folder._write_identity()
            kept.cut_torn_line(path / SAMPLES)
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
            with wrap_os_errors("repair", self.path / SAMPLES):
                os.truncate(self.path / SAMPLES, sum(len(line) for line in lines[:whole]))
        return lines[:whole]

    def append(self, lines: Iterable[str]) -> None:
        """Append one chunk and force it to the disk.

        Raises:
            RunFolderError: the disk is full or the folder cannot be written; the file is as it was.
        """
        kept.append_whole(self.path / SAMPLES, "".join(f"{line}\n" for line in lines).encode())

    def write_text(self, name: str, text: str) -> Path:
        """Replace a whole file of the folder in one step.

        Raises:
            RunFolderError: the disk is full or the folder cannot be written.
        """
        with wrap_os_errors("write", self.path / name):
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
        kept.write_identity(self.path / IDENTITY, self._identity)


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
    return kept.read_identity(path / IDENTITY, f"{path} holds samples")
