"""Reads a bank's log from its start, or on from where it was read to: several processes may add lines to it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from skill_ttrl.errors import SkillBankError
from skill_ttrl.skills.bank.log_line import is_sealed, lost_only_its_end, opened
from skill_ttrl.skills.snapshot import Snapshot
from skill_ttrl.types import BankUpdate

UpdateKey = tuple[str, int, str]
"""Identity of a run's update: the run's id, the step and the reason."""


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
        self.unsealed = 0
        """Lines without a checksum."""
        self.versions: dict[UpdateKey, int] = {}
        """Versions of the updates that runs made."""
        self._sealed = False

    def read_on(self) -> None:
        """Read the lines that were added since the last call.

        Raises:
            SkillBankError: a line is damaged, or lines that were read before are gone.
            OSError: the file cannot be read.
        """
        last, length = self.current.version, self.length
        digest, unsealed, torn = self.digest.copy(), self.unsealed, False
        versions, must = dict[UpdateKey, int](), self._sealed

        def whole_updates() -> Iterator[BankUpdate]:
            nonlocal last, length, unsealed, torn, must
            with self.file.open("rb") as stream:
                self._check_length(os.fstat(stream.fileno()).st_size)
                stream.seek(self.length)
                for line in stream:
                    last += 1
                    try:
                        update = opened(line, digest, must=must)
                    except ValueError:
                        # Only the last line has no end; a writer may be adding to it at this moment.
                        if line.endswith(b"\n") or lost_only_its_end(line, digest):
                            raise
                        torn = True
                        return
                    yield update
                    must = is_sealed(line)
                    unsealed += not must
                    length += len(line)
                    digest.update(line)
                    versions.update(_versions(update))

        try:
            current = replay(self.current, whole_updates())
        except ValueError as error:
            raise damaged(self.file, last, error) from None
        self.current, self.length, self.digest = current, length, digest
        self.unsealed, self.torn, self._sealed = unsealed, torn, must
        self.versions |= versions

    def advance(self, line: bytes, update: BankUpdate, after: Snapshot) -> None:
        """Count a line that was just written as read; `after` is the bank with it."""
        self.length += len(line)
        self.digest.update(line)
        self.current, self._sealed = after, True
        self.versions.update(_versions(update))

    def grown(self) -> bool:
        """True if the file is not as long as what was read.

        Raises:
            OSError: the file is gone.
        """
        return self.file.stat().st_size != self.length

    def _check_length(self, size: int) -> None:
        if size < self.length:
            raise SkillBankError(
                f"{self.file} has {size} bytes, fewer or other than the {self.length} (version {self.current.version}) read before: "
                "another program truncated or replaced it. Nothing was changed. Restore the file, or start again with the bank as it "
                "is."
            )


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
