"""Folders that exist completely or not at all: entries of this user's cache, and folders generated for a user.

Environments cache there what takes long to make (`cache_folder`). One process makes it while the others wait (`waiting_for`), in a
temporary folder that is then renamed in one step (`made_whole`). The next process removes what a killed one left
(`remove_unfinished`). A digest of the code (`digest_of`) detects entries that another version made.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import platformdirs

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


@contextmanager
def made_whole(folder: Path, within: Path | None = None) -> Iterator[Path]:
    """Yield an empty folder to fill, and rename it to `folder` at the end; an error leaves nothing behind.

    Args:
        folder: an existing folder is replaced; its parent may be made meanwhile.
        within: parent of the folder to fill, on the same file system; `remove_unfinished` cleans it up. None: the parent of `folder`.

    Raises:
        OSError: the folder cannot be made or renamed.
    """
    with unfinished(within or folder.parent) as beside:
        yield beside
        beside.chmod(0o755)  # as any folder: what is made for a while is its user's alone
        if folder.exists():
            shutil.rmtree(folder)
        beside.rename(folder)


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
