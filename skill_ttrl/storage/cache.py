"""Folders that are there whole or not at all: what is made once and kept in this user's cache, and what is generated for a user.

Environments keep there what takes them long to make (`cache_folder`). One process makes it while the others wait (`waiting_for`),
beside its place and then in it in one step (`made_whole`), and what a killed process left is removed by the next
(`remove_unfinished`). What was made by other code than this version's is told by `digest_of`.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
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
def if_free(lock: Path) -> Iterator[bool]:
    """Hold a lock if nobody has it; see `waiting_for`. Gives whether it is held.

    Raises:
        OSError: it cannot be made, or the file system has no locks.
    """
    with lock.open("ab") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


@contextmanager
def unfinished(folder: Path) -> Iterator[Path]:
    """An empty folder in `folder` for what is not whole yet; removed at the end, whatever happens."""
    beside = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=folder))
    try:
        yield beside
    finally:
        shutil.rmtree(beside, ignore_errors=True)


@contextmanager
def made_whole(folder: Path, within: Path | None = None) -> Iterator[Path]:
    """An empty folder to fill, which becomes `folder` when it is filled; after an error nothing of it is left.

    Args:
        folder: what is there already is replaced; its parent may be made meanwhile.
        within: where it is filled, on the same file system, so that `remove_unfinished` finds it there. None: beside `folder`.

    Raises:
        OSError: it cannot be made or put in its place.
    """
    with unfinished(within or folder.parent) as beside:
        yield beside
        beside.chmod(0o755)  # as any folder: what is made for a while is its user's alone
        if folder.exists():
            shutil.rmtree(folder)
        beside.rename(folder)


def remove_unfinished(folder: Path) -> None:
    """Remove what a killed process left in `folder`; to be called only while no other process makes something there."""
    for left in folder.glob(f"{_UNFINISHED}*"):
        shutil.rmtree(left, ignore_errors=True)


def digest_of(files: Iterable[Path]) -> str:
    """16 hexadecimal digits of what stands in some files, as the modules whose code decides what is kept.

    Raises:
        OSError: one is not there.
    """
    return hashlib.blake2b(b"".join(file.read_bytes() for file in files), digest_size=8).hexdigest()
