"""A bank's history, in memory or in a folder that outlives any crash; what makes a folder a bank, its settings and its lock.

    BANK/
      bank.json     schema and settings
      log.jsonl     the truth: one `BankUpdate` a line, version 1 on line 1; a line is only ever added at the end
      log.torn      what was cut off behind the last whole line, if that ever happened
      .lock         held by the one process that writes
      chroma/       vectors (skills/chroma.py); may be deleted

An update counts once its whole line is on the disk (`append` has returned). A last line that is torn was never
acknowledged: it is left out, and cut off before the next write. Anything else that does not fit is an error, and opening
changes nothing. Each line is closed by a checksum over all bytes of the log up to it, so that a changed, lost or moved byte is
noticed:

    {"version":12,"changes":[...],"reason":"merge",...,"check":"0f3c9a7be1d24c55"}
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator

from skill_ttrl.config.skills import SkillsConfig
from skill_ttrl.errors import RunFolderError, SkillBankError
from skill_ttrl.skills.changes import Snapshot, quote
from skill_ttrl.storage.files import LOCK_FILE, acquire_lock, release_lock, write_all, write_atomic
from skill_ttrl.storage.jsonl import parse_json
from skill_ttrl.trust import SUFFIX, check_links, check_trusted, is_signed, powers, sign
from skill_ttrl.types import BankUpdate, from_json, to_json

SCHEMA = 1
BANK_FILE = "bank.json"
LOG_FILE = "log.jsonl"
TORN_FILE = "log.torn"
DIGITS = 16
"""Hexadecimal digits of a checksum."""
_CHECK = re.compile(rb',"check":"([0-9a-f]{%d})"\}\n\Z' % DIGITS)


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

    Raises:
        SkillBankError: the folder is no bank, of another schema, open for writing elsewhere, or its log is damaged.
    """

    def __init__(self, path: Path, *, settings: dict[str, Any] | None = None, read_only: bool = False) -> None:
        self.path, self.file = path, path / LOG_FILE
        self.notices: list[str] = []
        self.first = self.current = Snapshot()
        self._lock: int | None = None
        self._stream: int | None = None
        self._length, self._torn = 0, False
        self._digest = hashlib.blake2b(digest_size=16)  # of the whole lines
        if read_only or is_bank(path):
            read_settings(path)  # first of all: what cannot be read is not touched
        try:
            if not read_only:
                self._lock = _locked(path)
                if not is_bank(path):
                    self.file.touch()
                    write_settings(path, settings or {})
            try:
                self._read()
            except SkillBankError:
                if self._lock is not None:
                    raise
                self._read()  # without the lock: a writer may have cut off a torn line meanwhile
            if not read_only:
                if settings is not None and settings != read_settings(path):
                    write_settings(path, settings)
                self._stream = os.open(self.file, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        except OSError as error:
            self.close()
            raise refusal("open", path, error) from error
        except BaseException:
            self.close()
            raise

    def append(self, update: BankUpdate, after: Snapshot) -> None:
        """Write the line and force it to the disk; a write that fails leaves the log as it was."""
        stream, line = self._writable(), _sealed(update, self._digest)
        try:
            if self._torn:
                with self.file.open("rb") as source:
                    source.seek(self._length)
                    write_atomic(self.path / TORN_FILE, source.read())
                os.ftruncate(stream, self._length)
                self._torn = False
            write_all(stream, line)
            os.fsync(stream)
        except OSError as error:
            try:
                os.ftruncate(stream, self._length)
            except OSError:  # nothing more is written behind what is left of the line
                self.close()
            raise refusal("write", self.file, error) from error
        self._length += len(line)
        self._digest.update(line)
        self.current = after

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
        """Forget everything after `version`."""
        writable = self._writable()
        try:
            with self.file.open("rb") as stream:
                length = sum(len(line) for line in islice(stream, version))
            os.ftruncate(writable, length)
            os.fsync(writable)
            self._read()
        except OSError as error:
            raise refusal("write", self.file, error) from error

    def close(self) -> None:
        """Release the file and the lock. The log stays readable."""
        if self._stream is not None:
            os.close(self._stream)
        if self._lock is not None:
            release_lock(self.path, self._lock)
        self._stream = self._lock = None

    def _read(self) -> None:
        """Read the whole lines, and note a torn one behind them.

        Raises:
            SkillBankError: a line is damaged.
            OSError: the file cannot be read.
        """
        self._length, self._torn, number = 0, False, 0
        self._digest = hashlib.blake2b(digest_size=16)

        def whole_updates() -> Iterator[BankUpdate]:
            nonlocal number
            with self.file.open("rb") as stream:
                for line in stream:
                    number += 1
                    try:
                        update = _opened(line, self._digest)
                    except ValueError:
                        # Only the last line has no end. If only the line end is another byte, the line was whole, and is
                        # damaged, not torn.
                        found = _CHECK.search(line[:-1] + b"\n")
                        was_whole = (
                            found is not None and _checksum(line[: found.start()] + b"}", self._digest) == found[1]
                        )
                        if line.endswith(b"\n") or was_whole:
                            raise
                        self._torn = True
                        return
                    yield update
                    self._length += len(line)
                    self._digest.update(line)

        try:
            self.current = replay(self.first, whole_updates())
        except ValueError as error:
            raise damaged(self.file, number, error) from None
        if self._torn:
            self.notices = [f"{self.file}: the last line is torn (a crash while it was written) and was ignored."]

    def _writable(self) -> int:
        if self._stream is None:
            raise SkillBankError(
                f"The bank at {self.path} is closed or was opened for reading only: nothing was changed."
            )
        return self._stream


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


# The folder, and the settings that it keeps.


def is_bank(path: Path) -> bool:
    """True if a folder holds a bank (of any schema)."""
    return (path / BANK_FILE).is_file()


def read_settings(path: Path) -> dict[str, Any]:
    """The settings a bank was last written with.

    Raises:
        SkillBankError: the folder is no bank, or one of another schema.
    """
    if not is_bank(path):
        found = "a file" if path.is_file() else "a folder without bank.json" if path.exists() else "nothing"
        raise SkillBankError(
            f"There is no skill bank at {path}: found {found}. Create one with: skillttrl skills add, or skillttrl skills import."
        )
    try:
        data = (path / BANK_FILE).read_bytes()
        content = parse_json(data)
        schema, settings = content["schema"], dict(content["settings"])
    except OSError as error:
        raise refusal("read", path / BANK_FILE, error) from error
    except (ValueError, KeyError, TypeError):
        raise SkillBankError(
            f"{path / BANK_FILE} is damaged: it has no schema and settings. Restore the file."
        ) from None
    if schema != SCHEMA:
        raise SkillBankError(
            f"The bank at {path} was written under schema {schema!r}; this version of Skill-TTRL reads {SCHEMA}. Export it "
            "with the version that wrote it (skillttrl skills export) and import the file here."
        )
    check_trusted(path / BANK_FILE, data.decode("utf-8", "replace"), {"skills": settings}, shown=True)
    return settings


def check_settings_trusted(path: Path, chosen: Iterable[str]) -> None:
    """Refuse settings of another user's bank that import code.

    Args:
        path: the bank's folder.
        chosen: settings that are not the bank's own.

    Raises:
        TrustError: there are such settings, and the user has not said that they are trusted.
    """
    stated = {name: value for name, value in read_settings(path).items() if name not in set(chosen)}
    check_trusted(path / BANK_FILE, (path / BANK_FILE).read_text(encoding="utf-8"), {"skills": stated})


def write_settings(path: Path, settings: dict[str, Any]) -> None:
    """Make the folder a bank with these settings, signed as this user's unless they were another's before."""
    file = path / BANK_FILE
    content = json.dumps({"schema": SCHEMA, "settings": settings}, indent=2) + "\n"
    before = read_settings(path) if is_bank(path) else {}
    inherited = {name: value for name, value in settings.items() if name in before and before[name] == value}
    if not powers({"skills": inherited}) or is_signed(file, file.read_text(encoding="utf-8")):
        sign(file, content, {"skills": settings})
    write_atomic(file, content.encode())


def check_new(path: Path) -> None:
    """Refuse to make a bank where other things are.

    Raises:
        SkillBankError: the path is a file, or a folder that holds something and is no bank.
    """
    if path.exists() and not path.is_dir():
        raise SkillBankError(
            f"{path} is a file. A skill bank is a folder: name another path, or import the file into one."
        )
    own = (LOCK_FILE, f".{BANK_FILE}", f"{BANK_FILE}{SUFFIX}")
    entries = path.iterdir() if path.is_dir() else ()
    others = (entry for entry in entries if not entry.name.startswith(own))
    foreign = [entry for entry in others if entry.name != LOG_FILE or entry.stat().st_size > 0]  # an empty log is none
    if foreign and not is_bank(path):
        raise SkillBankError(
            f"{path} is not a skill bank and holds other things ({quote(foreign[0].name)}). Name a new or an empty folder."
        )


def _locked(path: Path) -> int:
    """Lock a bank's folder, made where it is not there; the descriptor that holds the lock.

    Raises:
        SkillBankError: another process has it, or it cannot be locked.
    """
    check_new(path)
    path.mkdir(parents=True, exist_ok=True)
    check_links(path)
    try:
        return acquire_lock(path)
    except RunFolderError as error:
        if isinstance(error.__cause__, OSError):
            raise refusal("lock", path, error.__cause__) from error
        look = f"or only view it: skillttrl inspect {path}"
        raise SkillBankError(str(error).replace("or choose another --output.", look)) from None


def refusal(action: str, path: Path, error: OSError) -> SkillBankError:
    """The error for what the system refused."""
    cure = "Check the path and its permissions."
    if action != "read":
        cure = "Nothing was changed. Check the path, its permissions and the free space."
    return SkillBankError(f"Cannot {action} {path}: {error.strerror or error}. {cure}")


Mode = Literal["embedding", "keyword", "hybrid", "template"]
Searched = Literal["all", "when_to_apply"]
Fallback = Literal["none", "most_useful"]
DEFAULT_MODEL = "sentence-transformers/all-MiniLM-L6-v2"
EMBEDDER = ("embedder", "embedder_model", "embedder_revision")
STORED = ("max_skills", "retrieval_mode", "top_k", "min_score", *EMBEDDER, "searched", "fallback", "stale_after_steps")
"""Settings that a bank's folder keeps from its last write."""


class BankSettings(SkillsConfig):
    """Capacity and retrieval of a bank: settings of the section `skills`, by default without a download and without a threshold.

    As an argument and in a bank's folder `retrieval` is called `retrieval_mode`, as in the first Skill-TTRL.
    """

    embedder: str = "hash"
    min_score: float | None = None
    top_k: int = Field(default=6, ge=1)
    """Default number of skills for `SkillBank.retrieve` and `skillttrl skills show --search` (SkillRL: 6)."""

    @model_validator(mode="before")
    @classmethod
    def _first_name(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        return {"retrieval" if name == "retrieval_mode" else name: value for name, value in given.items()}

    @property
    def retrieval_mode(self) -> Mode:
        """Another name of `retrieval`."""
        return self.retrieval

    @classmethod
    def from_config(cls, config: SkillsConfig) -> BankSettings:
        """Settings from a config's `skills` section."""
        return cls.model_validate(with_own_embedder(config).model_dump(exclude={"gate"}))

    @classmethod
    def of_folder(cls, path: Path) -> BankSettings:
        """Settings that a bank was last written with.

        Raises:
            SkillBankError: there is no bank, or its settings are damaged.
        """
        stored = read_settings(path)
        kept = {name: stored[name] for name in STORED if name in stored}
        return _checked(kept, f"{path / BANK_FILE} is damaged", "Correct it there")

    def changed(self, **settings: Any) -> BankSettings:
        """The same with other values.

        Raises:
            SkillBankError: one cannot be a setting.
        """
        values = {**self.model_dump(exclude={"gate"}), **settings}
        return _checked(values, "A skill bank cannot be opened with this setting", "Nothing was changed")

    def remembered(self) -> dict[str, Any]:
        """Settings that the bank's folder keeps."""
        return {name: getattr(self, name) for name in STORED}


def _checked(values: Mapping[str, Any], what: str, remedy: str) -> BankSettings:
    try:
        return BankSettings.model_validate(dict(values), strict=True)
    except ValidationError as error:
        problem = error.errors()[0]
        name = ".".join(map(str, problem["loc"])) or "skills"
        raise SkillBankError(f"{what}: {name} is {quote(problem['input'])} ({problem['msg']}). {remedy}.") from None


def with_own_embedder(skills: SkillsConfig) -> SkillsConfig:
    """The section with the embedder of the bank's folder that it names, where it states none.

    Raises:
        SkillBankError: the settings of that bank are damaged.
    """
    if skills.bank is None or "embedder" in skills.model_fields_set:
        return skills
    folder = next((each for each in (Path(skills.bank), Path(skills.bank) / "bank") if is_bank(each)), None)
    if folder is None:
        return skills
    own = BankSettings.of_folder(folder).model_dump(include={*EMBEDDER})
    return skills.model_copy(update=own)
