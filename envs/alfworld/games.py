"""Games: their files, where they are, which there are in a split, in a fixed order, and which of them can be played.

Every game of a split is read once. What was found is an index: one JSON file for each split's folder, in this user's cache
(`$XDG_CACHE_HOME/skill-ttrl/alfworld/index/`). Opening a split lists its folder and reads again the games whose size or time of change
differs; a process does so once.
"""

from __future__ import annotations

import difflib
import functools
import hashlib
import json
import os
import re
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, overload

from skill_ttrl.envs.alfworld.world import World, build_world, is_text, read_grammar, read_problem
from skill_ttrl.envs.text_env import generated_count
from skill_ttrl.errors import EnvError, SplitError, did_you_mean
from skill_ttrl.storage.files import cache_folder, digest_of, write_atomic

Progress = Callable[[int, int], None]
"""Callback that receives (games read or generated, games in total)."""
VARIABLE = "ALFWORLD_DATA"
GENERATE = "generated"
"""As `data`: this package's own games."""
MAX_GAMES = 1_000_000
"""Most training games that are generated."""
ONLY_OFFICIAL = "official"
"""As `data`: those of `$ALFWORLD_DATA`, and none where it is not set."""
GAME_FILE = "game.tw-pddl"
JSON_FOLDER = "json_2.1.1"
"""Folder of the official release that holds one for each split; generated games are laid out alike."""
SPLITS = ("train", "valid_seen", "valid_unseen")
GENERATED_FILE = "generated.json"
"""File next to `JSON_FOLDER` if this package generated the games: it records which games, and with which seed."""
OFFICIAL, GENERATED = "alfworld-official", "alfworld-generated"
"""Where games come from; every result names it."""
TASK_TYPES = (
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
)
"""In ALFWorld's own order (its numbers 1 to 6)."""
KEPT_WORLDS = 512
"""Games that are held in memory, the least recently used leave; about 0.2 MB each."""
DOMAINS = ("6ac36c7c5a294baf", "4de9bfc0fd89adc3")
"""Hashes of `alfred.pddl` without comments and white space, in the released games and in the package alfworld: what the engine
simulates. The second does not name `SinkType` as a place to clean at; no receptacle is of that type.
"""
NOT_PLAYED = ("movable", "Sliced")
"""ALFWorld's own environment leaves out folders with these in their names."""
_FIELDS: Mapping[str, type | tuple[type, ...]] = {
    "pddl_domain": str,
    "grammar": str,
    "pddl_problem": str,
    "walkthrough": (list, type(None)),
}
_OTHER_NAMES = {
    "eval_in_distribution": "valid_seen",
    "eval_out_of_distribution": "valid_unseen",
    "validation": "valid_seen",
    "test": "valid_unseen",
}


@dataclass(frozen=True, slots=True)
class Game:
    """One game of a collection."""

    id: str
    """`split/task folder/trial folder`: what `options={"task": id}` takes. Unique, and stable between machines."""
    path: Path
    """Of its `game.tw-pddl`."""
    source: str
    """`alfworld-official` or `alfworld-generated`."""
    task_type: str
    """One of `TASK_TYPES`."""

    @property
    def split(self) -> str:
        """`train`, `valid_seen` or `valid_unseen`."""
        return self.id.partition("/")[0]


@dataclass(frozen=True, slots=True)
class Loaded:
    """A game's content, ready to be played."""

    world: World
    walkthrough: tuple[str, ...]
    """Commands that win it; empty where its file has none. They know where hidden things are: to replay, not to learn from."""


def task_in_words(introduction: str) -> str:
    """Extract the task ("put a clean mug in cabinet.") from the first text of a game, which ends with it."""
    sentence = introduction.rpartition("\n\n")[2]
    return sentence.partition("Your task is to: ")[2] or sentence


def read_game_file(path: Path) -> dict[str, Any]:
    """The JSON of a game file.

    Raises:
        EnvError: there is none, it is cut off, or a field is missing; the message names the path.
    """
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise EnvError(f"There is no game {path}.") from None
    except (OSError, ValueError, RecursionError) as error:  # ValueError: no UTF-8, or no JSON
        raise EnvError(
            f"The game {path} cannot be read: {error}. It may be truncated; copy or unpack it again."
        ) from None
    found: dict[str, Any] = content if isinstance(content, dict) else {}
    for name, kind in _FIELDS.items():
        value = found.get(name, ...)
        if not isinstance(value, kind) or (isinstance(value, str) and not is_text(value)):
            raise EnvError(f"The game {path} has no {name!r} that is Unicode text.")
    return found


def read_content(path: Path, content: Mapping[str, Any]) -> Loaded:
    """A game from what `read_game_file` gives; messages name the path of the file.

    Raises:
        EnvError: it is of another domain or grammar, or a part is cut off.
    """
    try:
        found = domain_hash(content["pddl_domain"])
        if found not in DOMAINS:
            raise EnvError(f"its domain is not ALFWorld's alfred.pddl ({found}, not {' or '.join(DOMAINS)})")
        texts, task = read_grammar(content["grammar"])
        world = build_world(read_problem(content["pddl_problem"]), texts, task)
    except (EnvError, LookupError, ValueError) as error:
        raise EnvError(f"The game {path} cannot be played: {error}.") from None
    return Loaded(world, tuple(map(str, content["walkthrough"] or ())))


def load_game(path: Path) -> Loaded:
    """Read a game; one that was read before and has not changed since is taken from memory.

    Raises:
        EnvError: it cannot be read, or is of another domain or grammar; the message names the path.
    """
    try:
        stat = path.stat()
    except OSError:
        raise EnvError(f"There is no game {path}.") from None
    return _load(path, stat.st_mtime_ns, stat.st_size)


@functools.lru_cache(maxsize=KEPT_WORLDS)
def _load(path: Path, changed: int, size: int) -> Loaded:
    return read_content(path, read_game_file(path))


@functools.lru_cache(maxsize=8)
def domain_hash(text: str) -> str:
    """A hash of a PDDL domain that comments, case and white space do not change."""
    bare = re.sub(r"\s+", " ", re.sub(r";[^\n]*", "", text)).strip().lower()
    return hashlib.blake2b(bare.encode(), digest_size=8).hexdigest()


# Collections of games.


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
            found = [entry.name for entry in os.scandir(self.folder) if entry.is_dir()]
        except OSError as error:
            raise EnvError(f"The games in {self.folder} cannot be listed: {error.strerror or error}.") from None
        return tuple(sorted(name for name in found if not name.startswith(".")))

    def open(self, split: str, progress: Progress | None = None) -> Split:
        """All games of a split.

        Raises:
            EnvError: there is no such split, or its games cannot be listed or made.
        """
        known = self.splits()
        if split not in known:
            other = _OTHER_NAMES.get(split)
            meant = f" ALFWorld's {split!r} is called {other!r} here." if other in known else ""
            raise SplitError(f"There is no split {_short(split)} in {self}.{meant}{did_you_mean(split[:50], known)}")
        if self.folder is not None:
            source = GENERATED if (self.folder.parent / GENERATED_FILE).is_file() else OFFICIAL
            return open_split(self.folder / split, source, progress)
        from skill_ttrl.envs.alfworld.maker import ensure_generated

        return open_split(ensure_generated(progress, self.generated) / JSON_FOLDER / split, GENERATED, progress)

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
    count = generated_count(asked, "training games", MAX_GAMES)
    if count is not None:
        return Data(None, count or None)
    folder = Path(os.path.expanduser(asked))
    for candidate in (folder / JSON_FOLDER, folder):
        if any(os.path.isdir(candidate / split) for split in SPLITS):
            return Data(candidate.absolute())
    raise EnvError(
        f"There are no games in {folder} ({said}): expected {folder / JSON_FOLDER} with one of the folders "
        f"{', '.join(SPLITS[:-1])} or {SPLITS[-1]}. Name the folder that alfworld-download has filled, or use generated games: "
        f'data="{GENERATE}"' + (f", or unset {VARIABLE}." if data is None else ".")
    )


def _variable() -> str | None:
    """`$ALFWORLD_DATA`, unless the package alfworld has set it when it was imported: to its default folder, which it creates empty."""
    value, default = os.environ.get(VARIABLE), os.path.expanduser("~/.cache/alfworld")
    empty = not os.path.isdir(os.path.join(default, JSON_FOLDER))
    return None if "alfworld.info" in sys.modules and value == default and empty else value


class GameList(Sequence[Game]):
    """The games of one split that can be played, sorted by id, with what was left out. Written down as what it was opened with."""

    def __init__(
        self, data: Data, split: str, task_types: tuple[str, ...] = (), progress: Progress | None = None
    ) -> None:
        self.data, self.split, self.task_types = data, split, task_types
        self._every = every = data.open(split, progress)
        self.skipped = every.skipped
        """Id of each game of the split, of any task type, that is not played → why."""
        self._games = every.games
        if task_types:
            self._games = tuple(game for game in every.games if game.task_type in task_types)
        if not self._games:
            there = sorted({game.task_type for game in every.games})
            why = "".join(
                f" {len(self.skipped)} are left out, the first: {first}" for first in [*self.skipped.values()][:1]
            )
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
        """The games of another split of the same data, under the same choice of task types. Raises as `open_games`."""
        return self if split == self.split else GameList(self.data, split, self.task_types)

    def find(self, name: object) -> Game:
        """The game with this id, of any split of the same data and of any task type.

        Raises:
            EnvError: there is none, or it is left out; the message says why, or names the most similar id.
        """
        if not isinstance(name, str):
            raise EnvError(
                f"A task is named by its game's id, such as {self._games[0].id!r}; found {_short(name)} ({type(name).__name__}). Numbers depend on the data: `env.unwrapped.games[number].id` is an id."
            )
        split, every = name.partition("/")[0], self._every
        if split != self.split and split in self.data.splits():
            every = self.data.open(split)
        if name in every.by_id:
            return every.by_id[name]
        if name in every.skipped:
            raise EnvError(f"The game {name} is left out: {every.skipped[name].rstrip('.')}.")
        close = difflib.get_close_matches(name[:300], every.by_id, n=1)
        meant = f" Did you mean {close[0]!r}?" if close else ""
        raise EnvError(
            f"There is no game {_short(name)} in {self.data}.{meant} An id is split/task folder/trial folder, such as "
            f"{self._games[0].id!r}; the splits are {', '.join(self.data.splits())}."
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return GameList, (self.data, self.split, self.task_types)


def open_games(
    data: str | Path | None, split: str, *, task_types: Sequence[str] | None = None, progress: Progress | None = None
) -> GameList:
    """Open the games of a split.

    The first call reads every game of the split to find damaged ones, which takes seconds for thousands of games. The result is
    stored in an index, so that opening the split again takes a fraction of a second. Damaged games are left out: a
    warning counts and names them, and `skipped` lists them.

    Args:
        data: see `find_data`.
        split: `train`, `valid_seen` or `valid_unseen`, or another folder next to these.
        task_types: only games of these, see `TASK_TYPES`; None: of all six.
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


class Split(NamedTuple):
    """All games of a split."""

    folder: Path
    games: tuple[Game, ...]
    by_id: Mapping[str, Game]
    skipped: Mapping[str, str]
    """Id of each game that is not played → why."""


Entry = tuple[int, int, str, str]
"""A game in an index: bytes of its file, its time of change in nanoseconds, its task type, why it is not played (empty: it is)."""
_opened: dict[tuple[str, str], Split] = {}
_lock = threading.RLock()


def forget() -> None:
    """Look at the folders again when they are opened next."""
    with _lock:
        _opened.clear()


def open_split(folder: Path, source: str, progress: Progress | None = None) -> Split:
    """All games of a split's folder, `…/json_2.1.1/<split>`: as this process has opened it before, else by its index.

    Raises:
        EnvError: the folder cannot be listed.
    """
    with _lock:
        name = os.path.realpath(folder)
        if (name, source) not in _opened:
            entries = _read_index(name, progress)
            at = {
                f"{folder.name}/{game}": (folder / game / GAME_FILE, kind, why)
                for game, (*_, kind, why) in entries.items()
            }
            games = tuple(Game(game, path, source, kind) for game, (path, kind, why) in at.items() if not why)
            skipped = {game: why for game, (*_, why) in at.items() if why}
            _opened[name, source] = Split(folder, games, {game.id: game for game in games}, skipped)
        found = _opened[name, source]
    if found.skipped:
        counts = Counter(reason.rstrip(".") for reason in found.skipped.values()).most_common()
        why = [reason if count == 1 else f"{count}: {reason}" for reason, count in counts[:4]]
        more = [f"and {len(counts) - 4} more reasons"] if len(counts) > 4 else []
        total = f"{len(found.skipped)} of the {len(found.skipped) + len(found.games)} games in {folder} are left out"
        warnings.warn(f"{total}: {'; '.join([*why, *more])}.", stacklevel=5)
    return found


def index_file(folder: str | Path) -> Path:
    """Where the index of a split's folder is kept."""
    place = os.path.realpath(folder)
    key = hashlib.blake2b(os.fsencode(place), digest_size=8).hexdigest()
    return cache_folder("alfworld") / "index" / f"{os.path.basename(place)}-{key}.json"


def _read_index(name: str, progress: Progress | None) -> dict[str, Entry]:
    """`task folder/trial folder` → its game, sorted: as stored, with new and changed games read."""
    stamps: dict[str, tuple[int, int]] = {}
    try:
        for path in Path(name).glob(f"[!.]*/[!.]*/{GAME_FILE}"):
            stat = path.stat()
            # Unlike st_mtime_ns, st_ctime_ns also shows a change of permissions.
            stamps["/".join(path.parts[-3:-1])] = stat.st_size, stat.st_ctime_ns
    except OSError as error:
        raise EnvError(f"The games in {name} cannot be listed: {error.strerror or error}.") from None
    path, reader, known = index_file(name), _reader(), dict[str, Entry]()
    with suppress(OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):  # a damaged one is none
        stored = json.loads(path.read_bytes())
        if (stored["reader"], stored["folder"]) == (reader, name):
            known = {
                game: (int(size), int(at), str(kind), str(why))
                for game, (size, at, kind, why) in stored["entries"].items()
            }
    new = [game for game, stamp in sorted(stamps.items()) if game not in known or known[game][:2] != stamp]
    for number, game in enumerate(new, 1):
        known[game] = (*stamps[game], *look_at(Path(name), game))
        if progress is not None:
            progress(number, len(new))
    entries = {game: known[game] for game in sorted(stamps)}
    if new or len(known) != len(entries):
        with suppress(OSError):  # each process then reads the games again
            path.parent.mkdir(parents=True, exist_ok=True)
            content = {"reader": reader, "folder": name, "entries": entries}
            write_atomic(path, json.dumps(content, separators=(",", ":")).encode())
    return entries


@functools.cache
def _reader() -> str:
    """A hash of the modules that decide what an index says."""
    return digest_of(Path(__file__).with_name(f"{name}.py") for name in ("games", "world"))


def look_at(folder: Path, name: str) -> tuple[str, str]:
    """Read one game of a split's folder to its end: its task type, and why it is not played. Its name is `task folder/trial folder`."""
    task_type = name.partition("-")[0]
    if any(word in name for word in NOT_PLAYED):
        return task_type, f"ALFWorld plays no task with {' or '.join(map(repr, NOT_PLAYED))} in its name"
    if task_type not in TASK_TYPES:
        return "", "its folder's name is none of the six task types"
    path = folder / name / GAME_FILE
    try:
        content = read_game_file(path)
        if content.get("solvable") is not True:
            return task_type, "it is not marked as solvable"
        read_content(path, content)
    except EnvError as error:
        return task_type, str(error)
    return task_type, ""


def _short(value: object) -> str:
    """A value for a message, however long it is."""
    text = repr(value[:200] if isinstance(value, str) else value)
    return text if len(text) <= 200 else f"{text[:200]}…"
