"""Where a bank's history lies: in memory, or in a folder that outlives any crash.

    BANK/
      bank.json     schema and settings
      log.jsonl     the truth: one `BankUpdate` a line, version 1 on line 1; a line is only ever added at the end
      snapshots/    a whole version now and then, so that opening need not replay everything; may be deleted
      log.torn      what was cut off behind the last whole line, if that ever happened
      .lock         held by the one process that writes
      chroma/       vectors (skills/retrieval/index.py); may be deleted

An update counts once its whole line is on the disk (`append` has returned). A last line that is torn was never
acknowledged: it is left out, and cut off before the next write. Anything else that does not fit is an error, and opening
changes nothing. Each line has a checksum over the log up to it (`log_line`), so that a changed byte is noticed.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from skill_ttrl.errors import SkillBankError
from skill_ttrl.skills.bank.folder import LOG_FILE, is_bank, read_settings, refusal, take, write_settings
from skill_ttrl.skills.bank.log_line import is_sealed, lost_only_its_end, opened, sealed
from skill_ttrl.skills.bank.snapshot import Snapshot
from skill_ttrl.storage.files import release_lock, write_all, write_atomic
from skill_ttrl.types import BankUpdate, Skill, from_json, to_json

TORN_FILE = "log.torn"
SNAPSHOTS = "snapshots"


class Log(Protocol):
    """A history of updates, in order, without gaps."""

    notices: list[str]
    """What was found when it was opened and should be read."""
    current: Snapshot
    """The bank at the end of the log."""

    def append(self, update: BankUpdate, after: Snapshot) -> None:
        """Make the update last; `after` is the bank with it."""
        ...

    def updates(self, after: int = 0) -> Iterator[BankUpdate]:
        """The updates from version `after` + 1 on."""
        ...

    def nearest(self, version: int) -> Snapshot:
        """A whole version at or before `version` to replay from."""
        ...

    def cut(self, version: int) -> None:
        """Forget everything after `version`."""
        ...

    def close(self) -> None:
        """Let go of files and locks."""
        ...


class MemoryLog:
    """A history that ends with the process.

    Args:
        start: the version it begins with; what led to it is not known.
    """

    def __init__(self, start: Snapshot | None = None) -> None:
        self.notices: list[str] = []
        self.current = self._first = start or Snapshot()
        self._updates: list[BankUpdate] = []

    def append(self, update: BankUpdate, after: Snapshot) -> None:
        """See `Log.append`."""
        self._updates.append(update)
        self.current = after

    def updates(self, after: int = 0) -> Iterator[BankUpdate]:
        """See `Log.updates`."""
        return iter(self._updates[max(0, after - self._first.version) :])

    def nearest(self, version: int) -> Snapshot:
        """See `Log.nearest`."""
        return self._first

    def cut(self, version: int) -> None:
        """See `Log.cut`."""
        del self._updates[version - self._first.version :]
        self.current = replay(self._first, self._updates)

    def close(self) -> None:
        """See `Log.close`."""


def replay(start: Snapshot, updates: Iterable[BankUpdate]) -> Snapshot:
    """The version that the updates lead to.

    Raises:
        ValueError: an update has another version than the next one, or changes a skill that is not as it says.
    """
    skills, version, origin = dict(start.skills), start.version, start.origin
    for update in updates:
        version += 1
        if update.version != version:
            raise ValueError(f"it holds version {update.version}, expected {version}")
        for change in update.changes:
            if change.before is not None and skills.pop(change.before.id, None) != change.before:
                raise ValueError(f"it changes the skill {change.before.id!r}, which was not so before")
            if change.after is not None:
                skills[change.after.id] = change.after
        origin = origin if update.origin is None else update.origin
    return Snapshot.of(version, skills.values(), origin)


@dataclass(frozen=True, slots=True)
class _Mark:
    """A place in the log: behind the line of `version`, `length` bytes from its start."""

    version: int
    length: int
    digest: str
    """BLAKE2b of those bytes: whether a snapshot belongs to this log, and whether anything before it was damaged."""


class FileLog:
    """The history in a bank's folder. Open for writing it holds the folder's lock; `read_only` it writes nothing at all.

    Args:
        path: the folder; made when it is not there (or empty) and the log is opened for writing.
        settings: kept in `bank.json`; None keeps what is there.
        snapshot_every: fewest updates between two snapshots. The log must also have grown by the size of the last one,
            so that snapshots never take more room than the log.

    Raises:
        SkillBankError: the folder is no bank, of another schema, open for writing elsewhere, or its log is damaged.
    """

    def __init__(
        self, path: Path, *, settings: dict[str, Any] | None = None, read_only: bool = False, snapshot_every: int = 50
    ) -> None:
        self.path = path
        self.notices: list[str] = []
        self._every = snapshot_every
        self._lock: int | None = None
        self._stream: int | None = None
        if read_only or is_bank(path):
            read_settings(path)  # first of all: what cannot be read is not touched
        try:
            if not read_only:
                self._lock = take(path)
                if not is_bank(path):
                    (path / LOG_FILE).touch()
                    write_settings(path, settings or {})
            self._read()
            if not read_only:
                if settings is not None and settings != read_settings(path):
                    write_settings(path, settings)
                self._stream = os.open(path / LOG_FILE, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        except OSError as error:
            self.close()
            raise refusal("open", path, error) from error
        except BaseException:
            self.close()
            raise

    def append(self, update: BankUpdate, after: Snapshot) -> None:
        """Write the line and force it to the disk; a write that fails leaves the log as it was."""
        if self._stream is None:
            raise SkillBankError(
                f"The bank at {self.path} is closed or was opened for reading only: nothing was changed."
            )
        line = sealed(update, self._digest)
        try:
            if self._torn:
                self._cut_torn_tail(self._stream)
            write_all(self._stream, line)
            os.fsync(self._stream)
        except OSError as error:
            self._take_back(self._stream)
            raise refusal("write", self.path / LOG_FILE, error) from error
        self._length += len(line)
        self._digest.update(line)
        self.current = after
        grown = self._length - self._last.length
        if update.version - self._last.version >= self._every and grown >= self._last_size:
            self._write_snapshot()

    def updates(self, after: int = 0) -> Iterator[BankUpdate]:
        """See `Log.updates`. What is added while this is read is left out."""
        end = self.current.version
        with (self.path / LOG_FILE).open("rb") as stream:
            for number, line in enumerate(islice(stream, end), start=1):
                if number > after:
                    try:
                        yield from_json(BankUpdate, line)
                    except ValueError as error:
                        raise self._damaged(number, error) from None

    def nearest(self, version: int) -> Snapshot:
        """The newest usable snapshot at or before `version`; version 0, the empty bank, where there is none."""
        return self._start(version)[1]

    def cut(self, version: int) -> None:
        """Forget everything after `version`; the snapshots go first, so that a crash leaves none without its updates."""
        if self._stream is None:
            raise SkillBankError(
                f"The bank at {self.path} is closed or was opened for reading only: nothing was changed."
            )
        try:
            for file in self._snapshot_files():
                if int(file.stem) > version:
                    file.unlink()
            with (self.path / LOG_FILE).open("rb") as stream:
                length = sum(len(line) for line in islice(stream, version))
            os.ftruncate(self._stream, length)
            os.fsync(self._stream)
            self._read()
        except OSError as error:
            raise refusal("write", self.path / LOG_FILE, error) from error

    def close(self) -> None:
        """Let go of the file and the lock. Reading goes on."""
        if self._stream is not None:
            os.close(self._stream)
        if self._lock is not None:
            release_lock(self.path, self._lock)
        self._stream = self._lock = None

    def _read(self) -> None:
        """Everything from the newest usable snapshot on; sets where the log ends."""
        self._last, start, self._last_size = self._start()
        self._length, self._digest, self._torn = self._last.length, self._hash(self._last.length), False
        updates, path, unsealed = [], self.path / LOG_FILE, 0
        with path.open("rb") as stream:
            stream.seek(max(0, self._length - 64))
            must = is_sealed(stream.read(min(64, self._length)))
            for number, line in enumerate(stream, start=start.version + 1):
                try:
                    updates.append(opened(line, self._digest, must=must))
                except ValueError as error:
                    # Only the last line has no end; a writer may be adding to it at this moment.
                    if line.endswith(b"\n") or lost_only_its_end(line, self._digest):
                        raise self._damaged(number, error) from None
                    self._torn = True
                    self._say(f"{path}: the last line is torn (a crash while it was written) and was left out.")
                    break
                must = is_sealed(line)
                unsealed += not must
                self._length += len(line)
                self._digest.update(line)
        if unsealed:
            self._say(
                f"{path}: {unsealed} updates have no checksum (an earlier version wrote them): damage may go unnoticed."
            )
        self.current = start
        for update in updates:
            try:
                self.current = replay(self.current, [update])
            except ValueError as error:
                raise self._damaged(self.current.version + 1, error) from None

    def _say(self, notice: str) -> None:
        if notice not in self.notices:
            self.notices.append(notice)

    def _start(self, version: int | None = None) -> tuple[_Mark, Snapshot, int]:
        """The newest snapshot (at most of `version`) that belongs to the log, its place and its size; else the beginning."""
        for file in self._snapshot_files():
            if version is None or int(file.stem) <= version:
                try:
                    data = file.read_bytes()
                    mark, snapshot = _read_snapshot(data)
                except (OSError, ValueError, KeyError, TypeError):
                    continue  # only a speed-up: the log holds the same
                if self._hash(mark.length).hexdigest() == mark.digest:
                    return mark, snapshot, len(data)
        return _Mark(0, 0, ""), Snapshot(), 0

    def _snapshot_files(self) -> list[Path]:
        """Newest first."""
        found = (self.path / SNAPSHOTS).glob("*.jsonl")
        return sorted((file for file in found if file.stem.isdecimal()), key=lambda file: int(file.stem), reverse=True)

    def _hash(self, length: int) -> hashlib.blake2b:
        """Digest of the first `length` bytes of the log."""
        digest = hashlib.blake2b(digest_size=16)
        with (self.path / LOG_FILE).open("rb") as stream:
            while length > 0 and (block := stream.read(min(length, 1 << 20))):
                digest.update(block)
                length -= len(block)
        return digest

    def _write_snapshot(self) -> None:
        mark = _Mark(self.current.version, self._length, self._digest.hexdigest())
        data = _snapshot_bytes(mark, self.current)
        self._last, self._last_size = mark, len(data)
        try:
            (self.path / SNAPSHOTS).mkdir(exist_ok=True)
            write_atomic(self.path / SNAPSHOTS / f"{mark.version:08d}.jsonl", data)
        except OSError as error:  # the update itself is on the disk
            self.notices.append(
                f"Cannot write a snapshot of version {mark.version}: {error.strerror}. The log is whole."
            )

    def _cut_torn_tail(self, stream: int) -> None:
        with (self.path / LOG_FILE).open("rb") as source:
            source.seek(self._length)
            write_atomic(self.path / TORN_FILE, source.read())
        os.ftruncate(stream, self._length)
        self._torn = False

    def _take_back(self, stream: int) -> None:
        """Cut off what a failed write left; where that fails too, nothing more is written behind it."""
        try:
            os.ftruncate(stream, self._length)
        except OSError:
            self.close()

    def _damaged(self, number: int, problem: Exception) -> SkillBankError:
        lines = str(problem).splitlines()  # pydantic's first line only counts the errors
        reason = lines[0] if len(lines) == 1 else " ".join(lines[1:3]).partition(" [type=")[0]
        return SkillBankError(
            f"{self.path / LOG_FILE}, line {number} is damaged: {reason}. Nothing was changed. Restore the file from a copy, "
            f"or keep the {number - 1} updates before it: head -n {number - 1} log.jsonl > kept, then put `kept` in its place."
        )


def _snapshot_bytes(mark: _Mark, snapshot: Snapshot) -> bytes:
    """A line that says where it belongs and what follows, then a skill a line."""
    body = "".join(f"{to_json(skill)}\n" for skill in snapshot).encode()
    digest = hashlib.blake2b(body, digest_size=16).hexdigest()
    origin = {"origin": snapshot.origin} if snapshot.origin else {}
    return json.dumps({**asdict(mark), "body": digest, **origin}).encode() + b"\n" + body


def _read_snapshot(data: bytes) -> tuple[_Mark, Snapshot]:
    """What `_snapshot_bytes` wrote; `ValueError`, `KeyError` or `TypeError` where it is anything else."""
    first, _, body = data.partition(b"\n")
    head = json.loads(first)
    if head.pop("body") != hashlib.blake2b(body, digest_size=16).hexdigest():
        raise ValueError("damaged")
    origin = head.pop("origin", "")
    mark = _Mark(**head)
    return mark, Snapshot.of(mark.version, (from_json(Skill, line) for line in body.split(b"\n")[:-1]), origin)
