"""Where a bank's history lies: in memory, or in a folder that outlives any crash.

    BANK/
      bank.json     schema and settings
      log.jsonl     the truth: one `BankUpdate` a line, version 1 on line 1; a line is only ever added at the end
      log.torn      what was cut off behind the last whole line, if that ever happened
      .lock         held by the one process that writes; of a shared bank, for the time of one update
      chroma/       vectors (skills/chroma.py); may be deleted

An update counts once its whole line is on the disk (`append` has returned). A last line that is torn was never
acknowledged: it is left out, and cut off before the next write. Anything else that does not fit is an error, and opening
changes nothing. Each line is closed by a checksum over all bytes of the log up to it, so that a changed, lost or moved byte is
noticed:

    {"version":12,"changes":[...],"reason":"merge",...,"check":"0f3c9a7be1d24c55"}

Several processes may write a shared bank: each reads what the others added before it writes, under the lock (`FileLog.writing`).
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from skill_ttrl.errors import SkillBankError
from skill_ttrl.skills.folder import (
    LOCK_SECONDS,
    LOG_FILE,
    is_bank,
    lock,
    read_settings,
    refusal,
    settle_settings,
    take,
    write_settings,
)
from skill_ttrl.skills.snapshot import Snapshot
from skill_ttrl.storage.files import release_lock, write_all, write_atomic
from skill_ttrl.types import BankUpdate, from_json, to_json

TORN_FILE = "log.torn"
DIGITS = 16
"""Hexadecimal digits of a checksum."""
_CHECK = re.compile(rb',"check":"([0-9a-f]{%d})"\}\n\Z' % DIGITS)
UpdateKey = tuple[str, int, str]
"""Identity of a run's update: the run's id, the step and the reason."""


class MemoryLog:
    """A history of updates, in order, without gaps, that ends with the process. `FileLog` has the same methods.

    Args:
        start: the version it begins with; what led to it is not known.
    """

    def __init__(self, start: Snapshot | None = None) -> None:
        self.notices: list[str] = []
        """Messages for the user about problems found when the log was opened."""
        self.current = self.first = start or Snapshot()
        """The bank at the end of the log, and before its first update."""
        self._updates: list[BankUpdate] = []

    def refresh(self) -> None:
        """Read what other processes have added: nothing."""

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Be at the end of the log, and let nobody else write, until the block ends."""
        yield

    def made(self, writer: str, step: int | None, reason: str) -> BankUpdate | None:
        """The update that this run made in this step for this reason. None: a run that resumes rewinds a bank of its own."""

    def append(self, update: BankUpdate, after: Snapshot) -> None:
        """Make the update last; `after` is the bank with it."""
        self._updates.append(update)
        self.current = after

    def updates(self, after: int = 0) -> Iterator[BankUpdate]:
        """The updates from version `after` + 1 on."""
        return iter(self._updates[max(0, after - self.first.version) :])

    def cut(self, version: int) -> None:
        """Forget everything after `version`."""
        del self._updates[version - self.first.version :]
        self.current = replay(self.first, self._updates)

    def close(self) -> None:
        """Nothing is open."""


class FileLog:
    """The history in a bank's folder. Open for writing it holds the folder's lock; `read_only` it writes nothing at all.

    Args:
        path: the folder; made when it is not there (or empty) and the log is opened for writing.
        settings: kept in `bank.json`; None keeps what is there.
        read_only: open for reading.
        shared: other processes write too: take the lock for each update, not for as long as this is open.

    Raises:
        SkillBankError: the folder is no bank, of another schema, open for writing elsewhere, or its log is damaged.
    """

    def __init__(
        self, path: Path, *, settings: dict[str, Any] | None = None, read_only: bool = False, shared: bool = False
    ) -> None:
        self.path, self.file = path, path / LOG_FILE
        self.notices: list[str] = []
        self.first = Snapshot()
        self._reader = LogReader(self.file, self.first)
        self._shared, self._closed = shared, False
        self._lock: int | None = None
        self._stream: int | None = None
        if read_only or is_bank(path):
            read_settings(path)  # first of all: what cannot be read is not touched
        try:
            if not read_only:
                self._lock = take(path, LOCK_SECONDS if shared else 0.0)
                if not is_bank(path):
                    self.file.touch()
                    write_settings(path, settings or {})
            self._read()
            self._made = dict(self._reader.versions)  # a resumed run repeats these; what is made from here on is new
            if not read_only:
                if settings is not None:
                    settle_settings(path, settings)
                if shared:
                    self._release()
                else:
                    self._stream = self._open()
        except OSError as error:
            self.close()
            raise refusal("open", path, error) from error
        except BaseException:
            self.close()
            raise

    @property
    def current(self) -> Snapshot:
        """The bank with all updates that were read or made."""
        return self._reader.current

    def refresh(self) -> None:
        """Read what other processes have added. Under the lock: a writer may be cutting off a torn line at this moment."""
        try:
            grown = self._shared and self._reader.grown()
        except OSError as error:
            raise refusal("read", self.file, error) from error
        if grown:
            with self.writing():
                pass

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Be at the end of the log, and let nobody else write, until the block ends.

        Raises:
            SkillBankError: another process has held the lock for `LOCK_SECONDS`, or the log cannot be read.
        """
        if not self._shared or self._closed:
            yield
            return
        try:
            self._lock = lock(self.path, LOCK_SECONDS)
            self._stream = self._open()
            self._reader.read_on()
            if self._reader.torn:
                self._cut_torn_tail(self._stream)
            yield
        except OSError as error:
            raise refusal("write", self.file, error) from error
        finally:
            self._release()

    def made(self, writer: str, step: int | None, reason: str) -> BankUpdate | None:
        """The update that this run made in this step for this reason. None for a bank that is not shared: a run that resumes rewinds it."""
        if not self._shared or not writer or step is None:
            return None
        version = self._made.get(update_key(writer, step, reason))
        return None if version is None else next(self.updates(version - 1))

    def append(self, update: BankUpdate, after: Snapshot) -> None:
        """Write the line and force it to the disk; a write that fails leaves the log as it was."""
        stream, line = self._writable(), _sealed(update, self._reader.digest)
        try:
            if self._reader.torn:
                self._cut_torn_tail(stream)
            write_all(stream, line)
            os.fsync(stream)
        except OSError as error:
            self._take_back(stream)
            raise refusal("write", self.file, error) from error
        self._reader.advance(line, update, after)

    def updates(self, after: int = 0) -> Iterator[BankUpdate]:
        """The updates from version `after` + 1 on. What is added while this is read is left out."""
        end = self.current.version
        with self.file.open("rb") as stream:
            for number, line in enumerate(islice(stream, end), start=1):
                if number > after:
                    try:
                        yield from_json(BankUpdate, line)
                    except ValueError as error:
                        raise damaged(self.file, number, error) from None

    def cut(self, version: int) -> None:
        """Forget everything after `version`.

        Raises:
            SkillBankError: the bank is shared.
        """
        if self._shared:
            raise SkillBankError(
                f"The bank at {self.path} is shared: updates that others may have read are not deleted. Undo them with a new one: "
                f"skillttrl skills rollback {self.path} {version}"
            )
        writable = self._writable()
        try:
            with self.file.open("rb") as stream:
                length = sum(len(line) for line in islice(stream, version))
            os.ftruncate(writable, length)
            os.fsync(writable)
            self._reader = LogReader(self.file, self.first)
            self._read()
        except OSError as error:
            raise refusal("write", self.file, error) from error

    def close(self) -> None:
        """Release the file and the lock. The log stays readable."""
        self._closed = True
        self._release()

    def _release(self) -> None:
        if self._stream is not None:
            os.close(self._stream)
        if self._lock is not None:
            release_lock(self.path, self._lock)
        self._stream = self._lock = None

    def _open(self) -> int:
        return os.open(self.file, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)

    def _read(self) -> None:
        """Read on, and note what the user should know."""
        try:
            self._reader.read_on()
        except SkillBankError:
            if self._lock is not None:
                raise
            self._reader.read_on()  # without the lock: a writer may have cut off a torn line meanwhile
        if self._reader.torn:
            notice = f"{self.file}: the last line is torn (a crash while it was written) and was ignored."
            self.notices += [] if notice in self.notices else [notice]

    def _writable(self) -> int:
        if self._stream is None:
            raise SkillBankError(
                f"The bank at {self.path} is closed or was opened for reading only: nothing was changed."
            )
        return self._stream

    def _cut_torn_tail(self, stream: int) -> None:
        with self.file.open("rb") as source:
            source.seek(self._reader.length)
            write_atomic(self.path / TORN_FILE, source.read())
        os.ftruncate(stream, self._reader.length)
        self._reader.torn = False

    def _take_back(self, stream: int) -> None:
        """Cut off what a failed write left; where that fails too, nothing more is written behind it."""
        try:
            os.ftruncate(stream, self._reader.length)
        except OSError:
            self.close()


# Reading: from its start, or on from where it was read to, since several processes may add lines.


class LogReader:
    """The whole lines of a log that were read, and the bank that they lead to.

    Args:
        file: the log.
        first: the bank before its first line.
    """

    def __init__(self, file: Path, first: Snapshot) -> None:
        self.file = file
        self.current = first
        self.length = 0
        """Bytes of the whole lines."""
        self.digest = hashlib.blake2b(digest_size=16)
        """Digest of these bytes."""
        self.torn = False
        """True if a line without an end follows them."""
        self.versions: dict[UpdateKey, int] = {}
        """Versions of the updates that runs made."""

    def read_on(self) -> None:
        """Read the lines that were added since the last call.

        Raises:
            SkillBankError: a line is damaged, or lines that were read before are gone.
            OSError: the file cannot be read.
        """
        last, length = self.current.version, self.length
        digest, torn = self.digest.copy(), False
        versions = dict[UpdateKey, int]()

        def whole_updates() -> Iterator[BankUpdate]:
            nonlocal last, length, torn
            with self.file.open("rb") as stream:
                size = os.fstat(stream.fileno()).st_size
                if size < self.length:
                    raise SkillBankError(
                        f"{self.file} has {size} bytes, fewer or other than the {self.length} (version {self.current.version}) read "
                        "before: another program truncated or replaced it. Nothing was changed. Restore the file, or start again with the present bank."
                    )
                stream.seek(self.length)
                for line in stream:
                    last += 1
                    try:
                        update = _opened(line, digest)
                    except ValueError:
                        # Only the last line has no end; a writer may be adding to it at this moment. If only the line end is
                        # another byte, the line was whole, and is damaged, not torn.
                        found = _CHECK.search(line[:-1] + b"\n")
                        was_whole = found is not None and _checksum(line[: found.start()] + b"}", digest) == found[1]
                        if line.endswith(b"\n") or was_whole:
                            raise
                        torn = True
                        return
                    yield update
                    length += len(line)
                    digest.update(line)
                    versions.update(_versions(update))

        try:
            current = replay(self.current, whole_updates())
        except ValueError as error:
            raise damaged(self.file, last, error) from None
        self.current, self.length, self.digest = current, length, digest
        self.torn = torn
        self.versions |= versions

    def advance(self, line: bytes, update: BankUpdate, after: Snapshot) -> None:
        """Count a line that was just written as read; `after` is the bank with it."""
        self.length += len(line)
        self.digest.update(line)
        self.current = after
        self.versions.update(_versions(update))

    def grown(self) -> bool:
        """True if the file is not as long as what was read.

        Raises:
            OSError: the file is gone.
        """
        return self.file.stat().st_size != self.length


def update_key(writer: str, step: int, reason: str) -> UpdateKey:
    """The identity of an update. Of a writer `NAME:ID` the id counts: a run's folder may be renamed."""
    return writer.rpartition(":")[2], step, reason


def _versions(update: BankUpdate) -> dict[UpdateKey, int]:
    if not update.writer or update.step is None:
        return {}
    return {update_key(update.writer, update.step, update.reason): update.version}


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
    return start if version == start.version else Snapshot.of(version, skills.values(), origin)


def damaged(file: Path, number: int, problem: Exception) -> SkillBankError:
    """The error for a line that cannot be read."""
    lines = str(problem).splitlines()  # pydantic's first line only counts the errors
    reason = lines[0] if len(lines) == 1 else " ".join(lines[1:3]).partition(" [type=")[0]
    return SkillBankError(
        f"{file}, line {number} is damaged: {reason}. Nothing was changed. Restore the file from a copy, "
        f"or keep the {number - 1} updates before it: head -n {number - 1} log.jsonl > kept, then put `kept` in its place."
    )


def _sealed(update: BankUpdate, before: hashlib.blake2b) -> bytes:
    """The line of an update, with its end; `before` is the digest of everything in front of it."""
    body = to_json(update).encode()
    return b'%s,"check":"%s"}\n' % (body[:-1], _checksum(body, before))


def _opened(line: bytes, before: hashlib.blake2b) -> BankUpdate:
    """The update of a line; raises `ValueError` if it is damaged."""
    found = _CHECK.search(line)
    if found is None:
        raise ValueError("its checksum is missing" if line.endswith(b"\n") else "it does not end")
    body = line[: found.start()] + b"}"
    if _checksum(body, before) != found[1]:
        raise ValueError("its checksum is wrong: it was changed, or the log before it was")
    return from_json(BankUpdate, body)


def _checksum(body: bytes, before: hashlib.blake2b) -> bytes:
    digest = before.copy()
    digest.update(body)
    return digest.hexdigest()[:DIGITS].encode()
