"""The index of a split: every game read once, so that opening the split later neither reads nor lists anything.

It is one JSON file for each split's folder, in this user's cache (`$XDG_CACHE_HOME/skill-ttrl/alfworld/index/`). What opens it
asks for the times of the folders and files in it, and reads again what has changed:

- a task folder, a trial folder or a game that came, went or was put in the place of another, by the folder's time of change;
- a game that was written again, by its size and time of change;
- not noticed: a file of the same size with its old time put back, and `traj_data.json`, which is read with its game only.

A process asks again after `RECHECK_SECONDS` at the earliest: 256 environments are made without looking 256 times.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import json
import os
import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from skill_ttrl.envs.alfworld.game import GAME_FILE
from skill_ttrl.envs.alfworld.survey import Progress, look_at_all
from skill_ttrl.errors import EnvError
from skill_ttrl.storage.cache import cache_folder, digest_of, waiting_for
from skill_ttrl.storage.files import write_atomic

RECHECK_SECONDS = 5.0
_READERS = ("game", "grammar", "index", "problem", "survey", "world")
"""Modules whose text decides what an index says: one that other text has made is made again."""


class Entry(NamedTuple):
    """One game of an index."""

    size: int
    """Bytes of the game file."""
    changed: int
    """Nanoseconds since 1970, as the file system tells."""
    task_type: str
    status: str
    why: str
    """See `survey.Found`."""


@dataclass(frozen=True, eq=False)
class Index:
    """The games below one split's folder, as they were when it was made."""

    folders: Mapping[str, int] = field(default_factory=dict)
    """Folders without a game in them, from the split's own (".") on → their times of change: what may come shows there."""
    entries: Mapping[str, Entry] = field(default_factory=dict)
    """`task folder/trial folder` → its game, sorted."""


_ROW = (int, int, str, str, str)
_opened: dict[str, tuple[Index, float]] = {}
_lock = threading.RLock()


def open_index(folder: Path, progress: Progress | None = None) -> Index:
    """Return the index of a split's folder, from memory, from the cache, or newly made.

    Returns the same object as long as nothing has changed.

    Args:
        folder: `…/json_2.1.1/<split>`.
        progress: called with (games read, games in total) if games have to be read.

    Raises:
        EnvError: the folder cannot be listed.
    """
    name = os.path.realpath(folder)
    with _lock:
        index, asked = _opened.get(name, (None, 0.0))
        if index is not None and time.monotonic() - asked < RECHECK_SECONDS:
            return index
        if index is None or _changed(name, index):
            index = _from_cache(name, progress)
        _opened[name] = (index, time.monotonic())
        return index


def forget() -> None:
    """The next `open_index` asks the file system, however short ago the last was."""
    with _lock:
        _opened.clear()


def index_file(folder: Path) -> Path:
    """Where the index of a split's folder is kept."""
    place = os.path.realpath(folder)
    key = hashlib.blake2b(os.fsencode(place), digest_size=8).hexdigest()
    return cache_folder("alfworld") / "index" / f"{os.path.basename(place)}-{key}.json"


def _from_cache(name: str, progress: Progress | None) -> Index:
    """The stored index; made first where there is none that holds, by one process while others wait for it."""
    path = index_file(Path(name))
    stored = _read(path, name)
    if stored is not None and not _changed(name, stored):
        return stored
    with _alone(path) as writable:
        if writable:  # another process may have made it meanwhile
            stored = _read(path, name)
            if stored is not None and not _changed(name, stored):
                return stored
        index = _make(name, stored or Index(), progress)
        if writable:
            try:
                content = {"reader": _reader(), "folder": name, "folders": index.folders, "entries": index.entries}
                write_atomic(path, json.dumps(content, separators=(",", ":")).encode())
                _forget_gone(path.parent)
            except OSError as error:
                _warn_unwritable(path, error)
    return index


def _make(name: str, before: Index, progress: Progress | None) -> Index:
    """List the folder, and read what is new in it."""
    folders, stamps = _list(name)
    kept = {game: entry for game, entry in before.entries.items() if stamps.get(game) == (entry.size, entry.changed)}
    new = [game for game in stamps if game not in kept]
    read = zip(new, look_at_all(Path(name), new, progress), strict=True)
    made = {game: Entry(*_stamp(f"{name}/{game}", stamps[game]), *found) for game, found in read}
    return Index(folders, {game: kept.get(game) or made[game] for game in sorted(stamps)})


def _stamp(place: str, stamp: tuple[int, int]) -> tuple[int, int]:
    """None that holds for a game that may not be read: permissions change without a trace in its size and time."""
    return stamp if os.access(f"{place}/{GAME_FILE}", os.R_OK) else (-1, -1)


def _list(name: str) -> tuple[dict[str, int], dict[str, tuple[int, int]]]:
    """Times of the folders without games, and (size, time) of each game. Times first: what comes later is seen later."""
    folders: dict[str, int] = {}
    stamps: dict[str, tuple[int, int]] = {}
    try:
        folders["."] = os.stat(name).st_mtime_ns
        for task in _folders_in(name):
            folders[task] = os.stat(f"{name}/{task}").st_mtime_ns
            for trial in _folders_in(f"{name}/{task}"):
                place = f"{task}/{trial}"
                changed = os.stat(f"{name}/{place}").st_mtime_ns
                try:
                    stat = os.stat(f"{name}/{place}/{GAME_FILE}")
                except FileNotFoundError:
                    folders[place] = changed
                else:
                    stamps[place] = (stat.st_size, stat.st_mtime_ns)
    except OSError as error:
        raise EnvError(f"The games in {name} cannot be listed: {error.strerror or error}.") from None
    return folders, stamps


def _folders_in(place: str) -> list[str]:
    with os.scandir(place) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))


def _changed(name: str, index: Index) -> bool:
    """True if a folder or a game differs from the index; takes about 5 µs for each."""
    try:
        return any(
            os.stat(f"{name}/{place}").st_mtime_ns != changed for place, changed in index.folders.items()
        ) or any(
            (stat.st_size, stat.st_mtime_ns) != entry[:2]
            for stat, entry in ((os.stat(f"{name}/{game}/{GAME_FILE}"), entry) for game, entry in index.entries.items())
        )
    except OSError:
        return True


@functools.cache
def _reader() -> str:
    """A hash of the modules that read the games."""
    return digest_of(Path(__file__).with_name(f"{name}.py") for name in _READERS)


def _read(path: Path, name: str) -> Index | None:
    """The index in a file; None where there is none for this folder and this reader, or it is damaged, which is said."""
    try:
        content: Any = json.loads(path.read_bytes())
        if content["reader"] != _reader() or content["folder"] != name:
            return None
        entries = {str(game): Entry(*row) for game, row in content["entries"].items()}
        if not all(isinstance(value, kind) for row in entries.values() for value, kind in zip(row, _ROW, strict=True)):
            raise ValueError("a row is none")
        return Index(dict(content["folders"]), entries)
    except OSError:  # there is none, or it cannot be read: then writing it says so
        return None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        warnings.warn(f"The index {path} is damaged and is rebuilt ({error!r:.200}).", stacklevel=2)
        return None


@contextmanager
def _alone(path: Path) -> Iterator[bool]:
    """Hold the lock next to an index, after waiting for it; yield False if the cache cannot be written."""
    with ExitStack() as held:
        writable = True
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            held.enter_context(waiting_for(path.with_suffix(".lock")))
        except OSError as error:
            # On a file system without locks two processes do the work twice, and both correctly.
            writable = error.errno in (errno.ENOLCK, errno.ENOTSUP)
            if not writable:
                _warn_unwritable(path, error)
        yield writable


def _forget_gone(cache: Path) -> None:
    """Remove the indexes of folders that are no more: data that is unpacked anew for every run would fill the cache."""
    for path in cache.glob("*.json"):
        with suppress(
            OSError, ValueError, KeyError, TypeError, RecursionError
        ):  # one that cannot be read is mended by who needs it
            if not os.path.isdir(json.loads(path.read_bytes())["folder"]):
                path.unlink()
                path.with_suffix(".lock").unlink(missing_ok=True)


def _warn_unwritable(path: Path, error: OSError) -> None:
    warnings.warn(
        (
            f"The index of the games cannot be saved in {path.parent}: {error.strerror or error}. Each process rebuilds it (seconds "
            "for thousands of games). Make the folder writable, or set XDG_CACHE_HOME to one that is."
        ),
        stacklevel=2,
    )
