"""Collections of games: where they are, which there are in a split, in a fixed order, and which of them can be played.

Every game of a split is read once. What was found is an index: one JSON file for each split's folder, in this user's cache
(`$XDG_CACHE_HOME/skill-ttrl/alfworld/index/`). Opening a split lists its folder and reads again the games whose size or time of change
differs. `traj_data.json` is read with its game only. A process lists the folder again after `RECHECK_SECONDS` at the earliest: 256
environments are made without listing it 256 times.
"""

from __future__ import annotations

import difflib
import functools
import hashlib
import json
import os
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, overload

from skill_ttrl.envs.alfworld.game import (
    GAME_FILE,
    GENERATED,
    GENERATED_FILE,
    JSON_FOLDER,
    OFFICIAL,
    SPLITS,
    TASK_TYPES,
    Game,
    read_content,
    read_game_file,
)
from skill_ttrl.errors import EnvError, SplitError, did_you_mean
from skill_ttrl.storage.files import cache_folder, digest_of, write_atomic

Progress = Callable[[int, int], None]
"""Callback that receives (games read or generated, games in total)."""
VARIABLE = "ALFWORLD_DATA"
GENERATE = "generated"
"""As `data`: this package's own games."""
ONLY_OFFICIAL = "official"
"""As `data`: those of `$ALFWORLD_DATA`, and none where it is not set."""
_OTHER_NAMES = {
    "eval_in_distribution": "valid_seen",
    "eval_out_of_distribution": "valid_unseen",
    "validation": "valid_seen",
    "test": "valid_unseen",
}


class Skipped(NamedTuple):
    """A game that is not played."""

    id: str
    reason: str


@dataclass(frozen=True, slots=True)
class Data:
    """Where games are taken from."""

    folder: Path | None
    """Holds a folder for each split; None: this package's own games, which are made when a split is first opened."""
    generated: int | None = None
    """Training games of this package's own, where there is no folder; None: as many as it makes by default."""

    def splits(self) -> tuple[str, ...]:
        """The splits that can be opened."""
        if self.folder is None:
            return SPLITS
        try:
            found = [name for name in os.listdir(self.folder) if os.path.isdir(self.folder / name)]
        except OSError as error:
            raise EnvError(f"The games in {self.folder} cannot be listed: {error.strerror or error}.") from None
        return tuple(sorted(name for name in found if not name.startswith(".")))

    def open(self, split: str, progress: Progress | None = None) -> tuple[Path, str]:
        """The folder of a split and the source of its games.

        Raises:
            EnvError: there is no such split, or its games cannot be made.
        """
        known = self.splits()
        if split not in known:
            other = _OTHER_NAMES.get(split)
            meant = f" ALFWorld's {split!r} is called {other!r} here." if other in known else ""
            raise SplitError(f"There is no split {_short(split)} in {self}.{meant}{did_you_mean(split[:50], known)}")
        if self.folder is not None:
            source = GENERATED if (self.folder.parent / GENERATED_FILE).is_file() else OFFICIAL
            return self.folder / split, source
        from skill_ttrl.envs.alfworld.maker.games import ensure_generated

        return ensure_generated(progress, self.generated) / JSON_FOLDER / split, GENERATED

    def __str__(self) -> str:
        return "the generated games" if self.folder is None else str(self.folder)


def find_data(data: str | Path | None) -> Data:
    """Where the games are.

    Args:
        data: a folder with `json_2.1.1/` in it, that folder, `generated` (a folder of this name is `./generated`), or
            `generated:3000` for so many training games. `official`: `$ALFWORLD_DATA`, which must be set. None: that where it is
            set, else `generated`.

    Raises:
        EnvError: the folder, given or of the variable, has no games in it.
    """
    if not isinstance(data, str | os.PathLike | None):
        raise EnvError(f"data must be a folder or {GENERATE!r}, found {data!r:.200}.")
    asked, said = data, f"data={str(data)!r}"
    if asked == ONLY_OFFICIAL:
        asked, said = _variable(), f"${VARIABLE}"
        if asked in (None, "", GENERATE):
            raise EnvError(
                f"data={ONLY_OFFICIAL!r} means the official games, but {VARIABLE} is not set. Set it to the folder that "
                f'alfworld-download has filled, or use generated games: data="{GENERATE}".'
            )
    elif asked is None:
        asked, said = _variable() or GENERATE, f"${VARIABLE}"
    if asked == GENERATE:
        return Data(None)
    if isinstance(asked, str) and asked.startswith(f"{GENERATE}:"):
        return Data(None, _count(asked))
    folder = Path(os.path.expanduser(asked))
    for candidate in (folder / JSON_FOLDER, folder):
        if any(os.path.isdir(candidate / split) for split in SPLITS):
            return Data(candidate.absolute())
    raise EnvError(
        (
            f"There are no games in {folder} ({said}): expected {folder / JSON_FOLDER} with one of the folders "
            f"{', '.join(SPLITS[:-1])} or {SPLITS[-1]}. Name the folder that alfworld-download has filled, or use generated games: "
            f'data="{GENERATE}"'
        )
        + (f", or unset {VARIABLE}." if data is None else ".")
    )


def _count(data: str) -> int:
    """The number in `generated:N`."""
    count = data.partition(":")[2]
    if not (count.isascii() and count.isdigit() and int(count[:9])):
        raise EnvError(
            f'data={data[:60]!r} has no number of training games after the colon, such as "{GENERATE}:3000".'
        )
    return int(count[:9])


class GameList(Sequence[Game]):
    """The games of one split that can be played, sorted by id, with what was left out. Written down as what it was opened with."""

    def __init__(
        self,
        data: Data,
        split: str,
        task_types: tuple[str, ...] = (),
        progress: Progress | None = None,
    ) -> None:
        self.data, self.split, self.task_types = data, split, task_types
        self._every = every = _read(data, split, progress)
        self.source = every.source
        if every.skipped:
            _report(every.skipped, len(every.games), every.folder)
        self._games = every.games
        if task_types:
            self._games = tuple(game for game in every.games if game.task_type in task_types)
        self.skipped: tuple[Skipped, ...] = every.skipped
        """Games of the split, of any task type, that are not played."""
        if not self._games:
            there = sorted({game.task_type for game in every.games})
            why = f" {len(self.skipped)} are left out, the first: {self.skipped[0].reason}" if self.skipped else ""
            raise EnvError(
                f"There is no game of {' or '.join(task_types) or 'any task type'} in {every.folder} (expected TASK/TRIAL/{GAME_FILE}); "
                f"its {len(every.games)} games are of: {', '.join(there) or 'none'}.{why}"
            )

    def __len__(self) -> int:
        return len(self._games)

    @overload
    def __getitem__(self, number: int) -> Game: ...
    @overload
    def __getitem__(self, number: slice) -> Sequence[Game]: ...
    def __getitem__(self, number: int | slice) -> Game | Sequence[Game]:
        return self._games[number]

    def of(self, split: str) -> GameList:
        """The games of another split of the same data, under the same choice of task types.

        Raises:
            EnvError: see `open_games`.
        """
        if split == self.split:
            return self
        return GameList(self.data, split, self.task_types)

    def find(self, name: object) -> Game:
        """The game with this id, of any split of the same data and of any task type.

        Raises:
            EnvError: there is none, or it is left out; the message says why, or names the most similar id.
        """
        if not isinstance(name, str):
            raise EnvError(
                f"A task is named by its game's id, such as {self._games[0].id!r}; found {_short(name)} ({type(name).__name__}). Numbers depend on the data: `env.unwrapped.games[number].id` is an id."
            )
        split = name.partition("/")[0]
        every = self._every
        if split != self.split and split in self.data.splits():
            every = _read(self.data, split, None)
        found = every.by_id.get(name)
        if found is None:
            for game in every.skipped:
                if game.id == name:
                    raise EnvError(f"The game {name} is left out: {game.reason.rstrip('.')}.")
            close = difflib.get_close_matches(name[:300], every.by_id, n=1)
            meant = f" Did you mean {close[0]!r}?" if close else ""
            raise EnvError(
                f"There is no game {_short(name)} in {self.data}.{meant} An id is split/task folder/trial folder, such as "
                f"{self._games[0].id!r}; the splits are {', '.join(self.data.splits())}."
            )
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        return GameList, (self.data, self.split, self.task_types)


def open_games(
    data: str | Path | None,
    split: str,
    *,
    task_types: Sequence[str] | None = None,
    progress: Progress | None = None,
) -> GameList:
    """Open the games of a split.

    The first call reads every game of the split to find damaged ones, which takes seconds for thousands of games. The result is
    stored in an index (`open_index`), so that opening the split again takes a fraction of a second. Damaged games are left out: a
    warning counts and names them, and `skipped` lists them.

    Args:
        data: see `find_data`.
        split: `train`, `valid_seen` or `valid_unseen`, or another folder next to these.
        task_types: only games of these, see `game.TASK_TYPES`; None: of all six.
        progress: called with (games done, games in total) while games are read for the first time, or generated.

    Raises:
        EnvError: there are no games there, no such split, no such task type.
    """
    if isinstance(task_types, str):
        task_types = (task_types,)
    for name in task_types or ():
        if name not in TASK_TYPES:
            raise EnvError(f"There is no task type {_short(name)}.{did_you_mean(str(name)[:50], TASK_TYPES)}")
    return GameList(find_data(data), str(split), tuple(task_types or ()), progress)


class _Every(NamedTuple):
    """All games of a split."""

    folder: Path
    source: str
    games: tuple[Game, ...]
    by_id: Mapping[str, Game]
    skipped: tuple[Skipped, ...]


def _read(data: Data, split: str, progress: Progress | None) -> _Every:
    folder, source = data.open(split, progress)
    return _sorted_out(open_index(folder, progress), folder, split, source)


@lru_cache(maxsize=8)
def _sorted_out(index: Index, folder: Path, split: str, source: str) -> _Every:
    """The games of an index; while it is the same object, lists share their games."""
    games, skipped = [], []
    for name, entry in index.entries.items():
        game = f"{split}/{name}"
        if not entry.why:
            games.append(Game(game, folder / name / GAME_FILE, source, entry.task_type))
        else:
            skipped.append(Skipped(game, entry.why))
    return _Every(folder, source, tuple(games), {game.id: game for game in games}, tuple(skipped))


def _report(skipped: Sequence[Skipped], others: int, folder: Path) -> None:
    """Warn of the games that are left out, with how many have each reason; of a damaged one the reason names its file."""
    counts = Counter(game.reason.rstrip(".") for game in skipped).most_common()
    why = [reason if count == 1 else f"{count}: {reason}" for reason, count in counts[:4]]
    more = [f"and {len(counts) - 4} more reasons"] if len(counts) > 4 else []
    total = f"{len(skipped)} of the {len(skipped) + others} games in {folder} are left out"
    warnings.warn(f"{total}: {'; '.join([*why, *more])}.", stacklevel=4)


def _variable() -> str | None:
    """`$ALFWORLD_DATA`, unless the package alfworld has set it when it was imported: to its default folder, which it creates empty."""
    value, default = os.environ.get(VARIABLE), os.path.expanduser("~/.cache/alfworld")
    empty = not os.path.isdir(os.path.join(default, JSON_FOLDER))
    return None if "alfworld.info" in sys.modules and value == default and empty else value


def _short(value: object) -> str:
    """A value for a message, however long it is."""
    text = repr(value[:200] if isinstance(value, str) else value)
    return text if len(text) <= 200 else f"{text[:200]}…"


RECHECK_SECONDS = 5.0
_READERS = ("game", "games", "world")
"""Modules whose text decides what an index says: one that other text has made is made again."""


class Entry(NamedTuple):
    """One game of an index."""

    size: int
    """Bytes of the game file."""
    changed: int
    """Nanoseconds since 1970, as the file system tells."""
    task_type: str
    """One of `TASK_TYPES`, or empty."""
    why: str
    """Why it is not played, with the file's path where it is damaged; empty: it is played."""


@dataclass(frozen=True, eq=False)
class Index:
    """The games below one split's folder."""

    entries: Mapping[str, Entry]
    """`task folder/trial folder` → its game, sorted."""


_ROW = (int, int, str, str)
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
    known = _stored(path, name)
    if known is not None and not _differs(known, stamps):
        return known
    kept = {} if known is None else known.entries
    new = [game for game, stamp in stamps.items() if game not in kept or kept[game][:2] != stamp]
    read = {}
    for number, game in enumerate(new, 1):
        read[game] = Entry(*stamps[game], *look_at(Path(name), game))
        if progress is not None:
            progress(number, len(new))
    entries = {game: read[game] if game in read else kept[game] for game in stamps}
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


def _stored(path: Path, name: str) -> Index | None:
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


NOT_PLAYED = ("movable", "Sliced")
"""ALFWorld's own environment leaves out folders with these in their names."""


def look_at(folder: Path, name: str) -> tuple[str, str]:
    """Read one game of a split's folder to its end: its task type, and why it is not played. Its name is `task folder/trial folder`."""
    task_type, place = "", folder / name
    try:
        task_type = _task_type(place, name)
        if any(word in name for word in NOT_PLAYED):
            return task_type, f"ALFWorld plays no task with {' or '.join(map(repr, NOT_PLAYED))} in its name"
        if not task_type:
            return "", "its folder's name is none of the six task types"
        content = read_game_file(place / GAME_FILE)
        if content.get("solvable") is not True:
            return task_type, "it is not marked as solvable"
        read_content(place / GAME_FILE, content)
    except EnvError as error:
        return task_type, str(error)
    return task_type, ""


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
