"""Where a bank's history lies: in memory, or in a folder that outlives any crash.

    BANK/
      bank.json     schema and settings
      log.jsonl     the truth: one `BankUpdate` a line, version 1 on line 1; a line is only ever added at the end
      log.torn      what was cut off behind the last whole line, if that ever happened
      .lock         held by the one process that writes; of a shared bank, for the time of one update
      chroma/       vectors (skills/retrieval/chroma.py); may be deleted

An update counts once its whole line is on the disk (`append` has returned). A last line that is torn was never
acknowledged: it is left out, and cut off before the next write. Anything else that does not fit is an error, and opening
changes nothing. Each line has a checksum over the log up to it (`log_line`), so that a changed byte is noticed. Several
processes may write a shared bank: each reads what the others added before it writes, under the lock (`FileLog.writing`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from skill_ttrl.errors import SkillBankError
from skill_ttrl.skills.bank.log_line import sealed
from skill_ttrl.skills.bank.log_reader import LogReader, damaged, replay, update_key
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
from skill_ttrl.types import BankUpdate, from_json

TORN_FILE = "log.torn"


class Log(Protocol):
    """A history of updates, in order, without gaps."""

    notices: list[str]
    """Messages for the user about problems found when the log was opened."""
    first: Snapshot
    """The bank before the first update of the log."""

    @property
    def current(self) -> Snapshot:
        """The bank at the end of the log, as far as it was read."""
        ...

    def refresh(self) -> None:
        """Read what other processes have added."""
        ...

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Be at the end of the log, and let nobody else write, until the block ends."""
        ...

    def made(self, writer: str, step: int | None, reason: str) -> BankUpdate | None:
        """The update that this run made in this step for this reason; None where it made none: a resumed run repeats steps."""
        ...

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

    def refresh(self) -> None:
        """Nobody else adds anything."""

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Nobody else writes."""
        yield

    def made(self, writer: str, step: int | None, reason: str) -> BankUpdate | None:
        """None: a run that resumes rewinds a bank of its own."""

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
        """See `Log.current`."""
        return self._reader.current

    def refresh(self) -> None:
        """See `Log.refresh`. Under the lock: a writer may be cutting off a torn line at this moment."""
        try:
            grown = self._shared and self._reader.grown()
        except OSError as error:
            raise refusal("read", self.file, error) from error
        if grown:
            with self.writing():
                pass

    @contextmanager
    def writing(self) -> Iterator[None]:
        """See `Log.writing`.

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
        """See `Log.made`. None for a bank that is not shared: a run that resumes rewinds it."""
        if not self._shared or not writer or step is None:
            return None
        version = self._made.get(update_key(writer, step, reason))
        return None if version is None else next(self.updates(version - 1))

    def append(self, update: BankUpdate, after: Snapshot) -> None:
        """Write the line and force it to the disk; a write that fails leaves the log as it was."""
        stream, line = self._writable(), sealed(update, self._reader.digest)
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
        """See `Log.updates`. What is added while this is read is left out."""
        end = self.current.version
        with self.file.open("rb") as stream:
            for number, line in enumerate(islice(stream, end), start=1):
                if number > after:
                    try:
                        yield from_json(BankUpdate, line)
                    except ValueError as error:
                        raise damaged(self.file, number, error) from None

    def cut(self, version: int) -> None:
        """See `Log.cut`.

        Raises:
            SkillBankError: the bank is shared.
        """
        if self._shared:
            raise SkillBankError(
                f"The bank at {self.path} is shared: updates that others may have read are not deleted. Undo them by a new one: "
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
        """Let go of the file and the lock. Reading goes on."""
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
            self._say(f"{self.file}: the last line is torn (a crash while it was written) and was left out.")
        if unsealed := self._reader.unsealed:
            self._say(
                f"{self.file}: {unsealed} updates have no checksum (an earlier version wrote them): damage may go unnoticed."
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
