"""The index of a split: every game is read once, so that opening the split later reads none.

It is one JSON file for each split's folder, in this user's cache (`$XDG_CACHE_HOME/skill-ttrl/alfworld/index/`). Opening a split lists
its folder and reads again the games whose size or time of change differs. `traj_data.json` is read with its game only.

A process lists the folder again after `RECHECK_SECONDS` at the earliest: 256 environments are made without listing it 256 times.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from skill_ttrl.envs.alfworld.game import GAME_FILE, TASK_TYPES, read_content, read_game_file
from skill_ttrl.errors import EnvError
from skill_ttrl.storage.cache import cache_folder, digest_of
from skill_ttrl.storage.files import write_atomic

RECHECK_SECONDS = 5.0
_READERS = ("game", "grammar", "index", "world")
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
    """See `Found`."""


@dataclass(frozen=True, eq=False)
class Index:
    """The games below one split's folder."""

    entries: Mapping[str, Entry]
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
        index, listed = _opened.get(name, (None, 0.0))
        if index is not None and time.monotonic() - listed < RECHECK_SECONDS:
            return index
        stamps = _list(name)
        if index is None or _differs(index, stamps):
            index = _updated(name, stamps, progress)
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


def _updated(name: str, stamps: Mapping[str, tuple[int, int]], progress: Progress | None) -> Index:
    """The stored index, with new and changed games read, and stored again where something has changed."""
    path = index_file(Path(name))
    known = _read(path, name)
    if known is not None and not _differs(known, stamps):
        return known
    kept = {} if known is None else known.entries
    new = [game for game, stamp in stamps.items() if game not in kept or kept[game][:2] != stamp]
    read = dict(zip(new, look_at_all(Path(name), new, progress), strict=True))
    entries = {game: Entry(*stamp, *read[game]) if game in read else kept[game] for game, stamp in stamps.items()}
    content = {"reader": _reader(), "folder": name, "entries": entries}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, json.dumps(content, separators=(",", ":")).encode())
    except OSError as error:
        warnings.warn(
            f"The index of the games cannot be saved in {path.parent}: {error.strerror or error}. Each process rebuilds it "
            "(seconds for thousands of games). Make the folder writable, or set XDG_CACHE_HOME to one that is.",
            stacklevel=2,
        )
    return Index(entries)


def _list(name: str) -> dict[str, tuple[int, int]]:
    """(size, time of change) of each game, by its name, sorted."""
    stamps: dict[str, tuple[int, int]] = {}
    try:
        for task in _folders_in(name):
            for trial in _folders_in(f"{name}/{task}"):
                game = f"{name}/{task}/{trial}/{GAME_FILE}"
                try:
                    stat = os.stat(game)
                except FileNotFoundError:
                    continue
                stamps[f"{task}/{trial}"] = (stat.st_size, stat.st_ctime_ns)  # that of a change of permissions too
    except OSError as error:
        raise EnvError(f"The games in {name} cannot be listed: {error.strerror or error}.") from None
    return dict(sorted(stamps.items()))


def _folders_in(place: str) -> list[str]:
    with os.scandir(place) as entries:
        return [entry.name for entry in entries if entry.is_dir() and not entry.name.startswith(".")]


def _differs(index: Index, stamps: Mapping[str, tuple[int, int]]) -> bool:
    return {game: entry[:2] for game, entry in index.entries.items()} != stamps


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
        return Index(entries)
    except OSError:  # there is none, or it cannot be read: then writing it says so
        return None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        warnings.warn(f"The index {path} is damaged and is rebuilt ({error!r:.200}).", stacklevel=2)
        return None


PLAYABLE, FAST_CANNOT, DAMAGED, EXCLUDED = "playable", "fast cannot", "damaged", "excluded"
"""Status of a game: playable; only for the official engine; unreadable; or excluded, by ALFWorld too, for its name or because it is
none of the six task types or not known to be solvable."""
NOT_PLAYED = ("movable", "Sliced")
"""ALFWorld's own environment leaves out folders with these in their names."""

Progress = Callable[[int, int], None]
"""Callback that receives (games read or generated, games in total)."""


class Found(NamedTuple):
    """Result of reading a game."""

    task_type: str
    """One of `TASK_TYPES`, or empty."""
    status: str
    """`PLAYABLE`, `FAST_CANNOT`, `DAMAGED` or `EXCLUDED`."""
    why: str
    """Why it is not played, with the file's path where it is damaged; empty for `PLAYABLE`."""


def look_at(folder: Path, name: str) -> Found:
    """Read one game of a split's folder to its end; its name is `task folder/trial folder`."""
    place = folder / name
    try:
        task_type = _task_type(place, name)
    except EnvError as error:
        return Found("", DAMAGED, str(error))
    if any(word in name for word in NOT_PLAYED):
        return Found(
            task_type, EXCLUDED, f"ALFWorld plays no task with {' or '.join(map(repr, NOT_PLAYED))} in its name"
        )
    if not task_type:
        return Found("", EXCLUDED, "its folder's name is none of the six task types")
    try:
        content = read_game_file(place / GAME_FILE)
    except EnvError as error:
        return Found(task_type, DAMAGED, str(error))
    if content.get("solvable") is not True:
        return Found(task_type, EXCLUDED, "it is not marked as solvable")
    try:
        read_content(place / GAME_FILE, content)
    except EnvError as error:
        return Found(task_type, FAST_CANNOT, str(error))
    return Found(task_type, PLAYABLE, "")


def look_at_all(folder: Path, names: Sequence[str], progress: Progress | None = None) -> list[Found]:
    """Read many games, in the order of `names`; `progress` is called after each with (games read, games in total)."""
    found = []
    for number, name in enumerate(names, 1):
        found.append(look_at(folder, name))
        if progress is not None:
            progress(number, len(names))
    return found


def _task_type(place: Path, name: str) -> str:
    """The task type from the folder's name, which `traj_data.json` must not gainsay; empty where neither names one.

    Raises:
        EnvError: they differ, or `traj_data.json` cannot be read.
    """
    named = name.partition("-")[0]
    path = place / "traj_data.json"
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        return named if named in TASK_TYPES else ""
    except (OSError, ValueError, RecursionError) as error:
        raise EnvError(f"{path} cannot be read: {error}. It may be truncated; copy or unpack it again.") from None
    stated = content.get("task_type") if isinstance(content, Mapping) else None
    if stated not in TASK_TYPES:
        return ""
    if named in TASK_TYPES and named != stated:
        raise EnvError(f"{path} says task_type {stated!r}, its folder's name {named!r}.")
    return str(stated)
