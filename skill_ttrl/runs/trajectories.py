"""A JSONL file of trajectories that is written in a fixed order, one line each: stopped anywhere, it is gone on with.

Beside `FILE.jsonl` stands `FILE.jsonl.json`: what the trajectories were made with, and what is known of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from skill_ttrl.errors import RunFolderError
from skill_ttrl.storage import append_log as kept
from skill_ttrl.storage.files import acquire_lock, release_lock, wrap_os_errors

SUFFIX = ".jsonl"


class TrajectoryFile:
    """An open file of trajectories; a context manager that frees its lock. Make one with `open`."""

    def __init__(self, path: Path, lock: int, identity: dict[str, Any]) -> None:
        self.path = path
        self.cut = 0
        """Bytes of a torn last line that were cut when it was opened."""
        self._lock: int | None = lock
        self._identity = identity

    @classmethod
    def open(cls, path: str | Path, made_with: Mapping[str, Any]) -> TrajectoryFile:
        """Begin a file, or go on with one that was begun with the same `made_with`. A torn last line is cut.

        Args:
            path: New, or a file that was begun here; ends in `.jsonl`.
            made_with: All that the trajectories depend on, as JSON can hold it.

        Raises:
            RunFolderError: it is a folder, something else, or made with something else (the differences are named); another
                process writes to it; or it cannot be written.
        """
        path = Path(path)
        _refuse_foreign(path)
        with wrap_os_errors("make", path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
        file = cls(path, acquire_lock(path, _lock(path)), kept.new_identity(made_with))
        try:
            if beside(path).is_file():
                file._identity = read_identity(path)
                kept.refuse_another(
                    file._identity["made_with"],
                    made_with,
                    f"{path} holds trajectories",
                    "environment, agent and settings",
                )
                file.cut = kept.cut_torn_line(path)
            else:
                _refuse_foreign(path)  # now that nobody else can have begun it
                kept.write_identity(beside(path), file._identity)
        except BaseException:
            file.close()
            raise
        return file

    def lines(self) -> Iterator[bytes]:
        """The lines that there are, one after another: files are larger than memory."""
        if self.path.is_file():
            with wrap_os_errors("read", self.path), self.path.open("rb") as stream:
                yield from stream

    def append(self, lines: Sequence[bytes]) -> None:
        """Append lines, each with its line break, and force them to the disk.

        Raises:
            RunFolderError: the disk is full or the file cannot be written; it is as it was.
        """
        kept.append_whole(self.path, b"".join(lines))

    def note(self, facts: Mapping[str, Any]) -> None:
        """Note beside the file what is known of the trajectories and decides nothing."""
        if self._identity.get("facts") != facts:
            self._identity["facts"] = dict(facts)
            kept.write_identity(beside(self.path), self._identity)

    def close(self) -> None:
        """Free the lock; a file without a line leaves nothing. Safe to call twice."""
        if self._lock is None:
            return
        if not self.path.is_file() or not self.path.stat().st_size:
            for each in (self.path, beside(self.path)):
                each.unlink(missing_ok=True)
        _lock(self.path).unlink(missing_ok=True)
        release_lock(self.path, self._lock)
        self._lock = None

    def __enter__(self) -> TrajectoryFile:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def beside(path: Path) -> Path:
    """The file that says what the trajectories in `path` were made with."""
    return path.with_name(f"{path.name}.json")


def read_identity(path: Path) -> dict[str, Any]:
    """What stands beside a file of trajectories: `made_with`, and `facts` once they are known.

    Raises:
        RunFolderError: it cannot be read, or is of another schema.
    """
    return kept.read_identity(beside(path), f"{path} holds trajectories")


def _refuse_foreign(path: Path) -> None:
    if path.is_dir():
        raise RunFolderError(
            f"Cannot write trajectories to {path}: it is a folder. Name a file in it: {path / f'trajectories{SUFFIX}'}"
        )
    if path.suffix != SUFFIX:
        raise RunFolderError(
            f"Cannot write trajectories to {path}: a file of them ends in {SUFFIX}. Choose {path.name}{SUFFIX}."
        )
    if path.exists() and not path.is_file():
        raise RunFolderError(f"Cannot write trajectories to {path}: it is no ordinary file. Choose another --output.")
    if path.is_file() and path.stat().st_size and not beside(path).is_file():
        raise RunFolderError(
            f"{path} exists, and nothing beside it ({beside(path).name}) says what it was made with, so it cannot be gone on "
            "with. Choose another --output, or remove it."
        )


def _lock(path: Path) -> Path:
    return path.with_name(f".{path.name}.lock")
