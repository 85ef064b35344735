"""Where a bank's history lies: in memory, or in a folder that outlives any crash.

    BANK/
      bank.json     schema and settings
      log.jsonl     the truth: one `BankUpdate` a line, version 1 on line 1; a line is only ever added at the end
      log.torn      what was cut off behind the last whole line, if that ever happened
      .lock         held by the one process that writes
      chroma/       vectors (skills/retrieval/chroma.py); may be deleted

An update counts once its whole line is on the disk (`append` has returned). A last line that is torn was never
acknowledged: it is left out, and cut off before the next write. Anything else that does not fit is an error, and opening
changes nothing. Each line has a checksum over the log up to it (`log_line`), so that a changed byte is noticed.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from skill_ttrl.errors import SkillBankError
from skill_ttrl.skills.bank.log_line import is_sealed, lost_only_its_end, opened, sealed
from skill_ttrl.skills.folder import LOG_FILE, is_bank, read_settings, refusal, take, write_settings
from skill_ttrl.skills.snapshot import Snapshot
from skill_ttrl.storage.files import release_lock, write_all, write_atomic
from skill_ttrl.types import BankUpdate, from_json

TORN_FILE = "log.torn"


class Log(Protocol):
    """A history of updates, in order, without gaps."""

    notices: list[str]
    """Messages for the user about problems found when the log was opened."""
    first: Snapshot
    """The bank before the first update of the log."""
    current: Snapshot
    """The bank at the end of the log."""

    def append(self, update: BankUpdate, after: Snapshot) -> None:
        """Make the update last; `after` is the bank with it."""
        ...

    def updates(self, after: int = 0) -> Iterator[BankUpdate]:
        """The updates from version `after` + 1 on."""
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
        self.current = self.first = start or Snapshot()
        self._updates: list[BankUpdate] = []

    def append(self, update: BankUpdate, after: Snapshot) -> None:
        """See `Log.append`."""
        self._updates.append(update)
        self.current = after

    def updates(self, after: int = 0) -> Iterator[BankUpdate]:
        """See `Log.updates`."""
        return iter(self._updates[max(0, after - self.first.version) :])

    def cut(self, version: int) -> None:
        """See `Log.cut`."""
        del self._updates[version - self.first.version :]
        self.current = replay(self.first, self._updates)

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


class FileLog:
    """The history in a bank's folder. Open for writing it holds the folder's lock; `read_only` it writes nothing at all.

    Args:
        path: the folder; made when it is not there (or empty) and the log is opened for writing.
        settings: kept in `bank.json`; None keeps what is there.
        read_only: open for reading.

    Raises:
        SkillBankError: the folder is no bank, of another schema, open for writing elsewhere, or its log is damaged.
    """

    def __init__(self, path: Path, *, settings: dict[str, Any] | None = None, read_only: bool = False) -> None:
        self.path = path
        self.notices: list[str] = []
        self.first = Snapshot()
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
        stream, line = self._writable(), sealed(update, self._digest)
        try:
            if self._torn:
                self._cut_torn_tail(stream)
            write_all(stream, line)
            os.fsync(stream)
        except OSError as error:
            self._take_back(stream)
            raise refusal("write", self.path / LOG_FILE, error) from error
        self._length += len(line)
        self._digest.update(line)
        self.current = after

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

    def cut(self, version: int) -> None:
        """See `Log.cut`."""
        writable = self._writable()
        try:
            with (self.path / LOG_FILE).open("rb") as stream:
                length = sum(len(line) for line in islice(stream, version))
            os.ftruncate(writable, length)
            os.fsync(writable)
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
        """Replay the log; sets where it ends."""
        self._length, self._digest, self._torn = 0, hashlib.blake2b(digest_size=16), False
        last = unsealed = 0  # number of the last line that was read; updates without a checksum

        def whole_updates() -> Iterator[BankUpdate]:
            nonlocal last, unsealed
            must = False  # have a checksum
            with (self.path / LOG_FILE).open("rb") as stream:
                for line in stream:
                    last += 1
                    try:
                        update = opened(line, self._digest, must=must)
                    except ValueError:
                        # Only the last line has no end; a writer may be adding to it at this moment.
                        if line.endswith(b"\n") or lost_only_its_end(line, self._digest):
                            raise
                        self._torn = True
                        return
                    yield update
                    must = is_sealed(line)
                    unsealed += not must
                    self._length += len(line)
                    self._digest.update(line)

        try:
            self.current = replay(self.first, whole_updates())
        except ValueError as error:
            raise self._damaged(last, error) from None
        where = self.path / LOG_FILE
        if self._torn:
            self._say(f"{where}: the last line is torn (a crash while it was written) and was left out.")
        if unsealed:
            self._say(
                f"{where}: {unsealed} updates have no checksum (an earlier version wrote them): damage may go unnoticed."
            )

    def _writable(self) -> int:
        if self._stream is None:
            raise SkillBankError(
                f"The bank at {self.path} is closed or was opened for reading only: nothing was changed."
            )
        return self._stream

    def _say(self, notice: str) -> None:
        if notice not in self.notices:
            self.notices.append(notice)

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
