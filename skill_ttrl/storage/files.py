"""Writing files so that a crash, a full disk or a second process leaves nothing half done.

The run folder and its checkpoints rest on these; nothing here knows what the files mean.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import mmap
import os
import shutil
import struct
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

import platformdirs
from pydantic import ValidationError

from skill_ttrl.errors import RunFolderError, on_error
from skill_ttrl.storage.jsonl import parse_json
from skill_ttrl.types import first_problem, from_json

LOCK_FILE = ".lock"

_held: set[str] = set()  # real paths this process has locked: a POSIX lock does not refuse its own process


@contextmanager
def wrap_os_errors(action: str, path: Path) -> Iterator[None]:
    """Turn an `OSError` into a `RunFolderError` that says what could not be done, why, and what helps."""
    try:
        yield
    except OSError as error:
        raise RunFolderError(f"Cannot {action} {path}: {explain_os_error(error)}") from error


def explain_os_error(error: OSError) -> str:
    """Why the system refused, and what to do, as a clause and a sentence."""
    return f"{error.strerror or error}. Check its permissions and the space that is left, or choose another --output."


def write_all(descriptor: int, data: bytes) -> None:
    """Write every byte (`os.write` may take only a part)."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def write_atomic(path: Path, data: bytes) -> None:
    """Write `data` to a temporary file next to `path`, sync it to the disk and rename it in one step. Leaves nothing on failure."""
    beside = path.with_name(f".{path.name}.tmp-{os.getpid()}")
    try:
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            write_all(descriptor, data)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(beside, path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    fsync(path.parent)


def write_new(path: Path, text: str) -> Path:
    """Write a file that must not exist yet, whole or not at all.

    Raises:
        RunFolderError: it exists, or cannot be written.
    """
    if path.exists():
        raise RunFolderError(f"{path} exists already. Choose another name or remove it first.")
    with wrap_os_errors("write", path):
        write_atomic(path, text.encode())
    return path


def write_folder(path: Path, files: Mapping[str, bytes]) -> None:
    """Make a folder with these files (by paths relative to it, with `/`), whole or not at all.

    Raises:
        OSError: it exists, or cannot be written. Nothing is left then.
    """
    if path.exists():
        raise FileExistsError(errno.EEXIST, "it exists already", str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    with unfinished(path.parent) as building:
        whole = building / path.name
        whole.mkdir()
        for name, data in files.items():
            (whole / name).parent.mkdir(parents=True, exist_ok=True)
            (whole / name).write_bytes(data)
        os.replace(whole, path)  # fails where another process has put files there meanwhile
    fsync(path.parent)


def fsync(path: Path) -> None:
    """Force a file's content, or a folder's entries, to the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def length_of_whole_lines(path: Path) -> int:
    """Bytes of `path` up to and with its last line break: shorter than the file where its last line is torn."""
    if not path.stat().st_size:  # nothing to map
        return 0
    # Private: file systems that keep no pages, as FUSE with direct I/O, refuse a shared mapping.
    with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ) as content:
        return content.rfind(b"\n") + 1


def acquire_lock(path: Path, lock: Path | None = None) -> int:
    """Lock a folder, or whatever else stands at `path`, for this process; the descriptor that holds the lock.

    A POSIX record lock, not `flock`: worker processes that outlive a killed run would inherit `flock` and keep it. The file
    `lock` holds it; None: one in the folder `path`.
    """
    real = os.path.realpath(path)
    if real in _held:
        raise RunFolderError(f"{path} is already open in this process. Close it first.")
    with wrap_os_errors("lock", path):
        descriptor = os.open(lock or path / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            owner = os.read(descriptor, 32).decode(errors="replace").strip()
            os.close(descriptor)
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                raise
            raise RunFolderError(
                f"Another process{f' ({owner})' if owner else ''} is writing to {path}. "
                "Wait until it ends, stop it, or choose another --output."
            ) from None
        with on_error(partial(os.close, descriptor)):
            os.ftruncate(descriptor, 0)
            write_all(descriptor, str(os.getpid()).encode())  # for the message above; the lock itself needs no content
    _held.add(real)
    return descriptor


def still_running(path: Path) -> str:
    """The words "still running" where a process holds the lock in the folder `path`, with its number where it is known; else empty.

    Queries the holder without taking the lock: taking it would make another process that opens the folder fail.
    """
    flock = "hhqqi0q"  # of Linux: type, whence, start, length, process
    if os.path.realpath(path) in _held:  # to open and close the file would free the lock
        return f"still running (process {os.getpid()})"
    with suppress(OSError), (path / LOCK_FILE).open("rb") as stream:
        answer = fcntl.fcntl(stream, fcntl.F_GETLK, struct.pack(flock, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
        kind, _, _, _, holder = struct.unpack(flock, answer)
        if kind != fcntl.F_UNLCK:  # the number is 0 or below where the process belongs to another container or machine
            return f"still running (process {holder})" if holder > 0 else "still running"
    return ""


class Locked:
    """Holds the lock of `path`, unless `_lock` is None, until it is closed: a context manager."""

    path: Path
    _lock: int | None

    def close(self) -> None:
        """Free the lock. Safe to call twice."""
        if self._lock is not None:
            release_lock(self.path, self._lock)
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def release_lock(path: Path, descriptor: int) -> None:
    """Free what `acquire_lock` gave. The death of the process does the same."""
    os.close(descriptor)
    _held.discard(os.path.realpath(path))


_UNFINISHED = ".making-"


def cache_folder(name: str) -> Path:
    """The folder of one environment in this user's cache, which `XDG_CACHE_HOME` moves; it may not be there yet."""
    return platformdirs.user_cache_path("skill-ttrl") / name


@contextmanager
def waiting_for(lock: Path) -> Iterator[None]:
    """Hold a lock, waiting while another process or thread has it. It is given back when its process dies.

    It is a file, made where it is not there, in a folder that is; it stays.

    Raises:
        OSError: it cannot be made, or the file system has no locks.
    """
    with lock.open("ab") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


@contextmanager
def unfinished(folder: Path) -> Iterator[Path]:
    """An empty folder in `folder` for what is not whole yet; removed at the end, whatever happens. Its lock shows that it is in use."""
    beside = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=folder))
    descriptor = os.open(beside, os.O_RDONLY)
    try:
        with suppress(OSError):  # without locks `remove_unfinished` removes nothing
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield beside
    finally:
        shutil.rmtree(beside, ignore_errors=True)
        os.close(descriptor)


def made_once(folder: Path, make: Callable[[Path], None]) -> Path:
    """Return a folder, filled by `make` if it does not exist yet: whole or not at all, by one process while the others wait.

    Raises:
        OSError: it cannot be made.
    """
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with waiting_for(folder.parent / LOCK_FILE):
            if not folder.is_dir():
                remove_unfinished(folder.parent)
                with unfinished(folder.parent) as made:
                    make(made)
                    made.chmod(0o755)  # as any folder: an unfinished one is readable by its user alone
                    made.rename(folder)
    return folder


def remove_unfinished(folder: Path) -> None:
    """Remove what killed processes left in `folder`; a folder that a process is still filling stays."""
    for left in folder.glob(f"{_UNFINISHED}*"):
        with suppress(OSError):  # locked, or removed by another process meanwhile
            descriptor = os.open(left, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(left, ignore_errors=True)
            finally:
                os.close(descriptor)


def digest_of(files: Iterable[Path]) -> str:
    """16 hexadecimal digits of the content of some files, such as the modules whose code makes an entry.

    Raises:
        OSError: one is not there.
    """
    return hashlib.blake2b(b"".join(file.read_bytes() for file in files), digest_size=8).hexdigest()


# Append-only JSONL with crash recovery, and a sidecar file with the settings that the lines were made with.
#
# A line is written completely or not at all. `open` continues only what was made with the same things.


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
        with on_error(self.close):
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
