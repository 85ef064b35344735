"""Collections of games: where they are, which there are in a split, in a fixed order."""

from __future__ import annotations

import difflib
import os
import sys
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
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
)
from skill_ttrl.envs.alfworld.index import DAMAGED, FAST_CANNOT, PLAYABLE, Index, Progress, open_index
from skill_ttrl.errors import EnvError, SplitError, did_you_mean

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
    damaged: bool
    """True: it cannot be read, and `strict` refuses it. False: ALFWorld leaves it out as well."""


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
        strict: bool = False,
        official: bool = False,
        progress: Progress | None = None,
    ) -> None:
        self.data, self.split, self.task_types, self.strict, self.official = data, split, task_types, strict, official
        self._every = every = _read(data, split, official, progress)
        self.source = every.source
        if every.skipped:
            _report(every.skipped, len(every.games), every.folder, strict)
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
        return GameList(self.data, split, self.task_types, self.strict, self.official)

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
            every = _read(self.data, split, self.official, None)
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
        return GameList, (self.data, self.split, self.task_types, self.strict, self.official)


def open_games(
    data: str | Path | None,
    split: str,
    *,
    task_types: Sequence[str] | None = None,
    strict: bool = False,
    engine: str = "fast",
    progress: Progress | None = None,
) -> GameList:
    """Open the games of a split.

    The first call reads every game of the split to find damaged ones, which takes seconds for thousands of games. The result is
    stored in an index (`skill_ttrl.envs.alfworld.index`), so that opening the split again takes a fraction of a second.

    Args:
        data: see `find_data`.
        split: `train`, `valid_seen` or `valid_unseen`, or another folder next to these.
        task_types: only games of these, see `game.TASK_TYPES`; None: of all six.
        strict: refuse a split with a damaged game. Otherwise such games are left out, a warning counts and names them, and
            `skipped` lists them.
        engine: `official` includes games of another domain or grammar than ALFWorld's; `fast` leaves them out.
        progress: called with (games done, games in total) while games are read for the first time, or generated.

    Raises:
        EnvError: there are no games there, no such split, no such task type; or, with `strict`, one is damaged.
    """
    if isinstance(task_types, str):
        task_types = (task_types,)
    for name in task_types or ():
        if name not in TASK_TYPES:
            raise EnvError(f"There is no task type {_short(name)}.{did_you_mean(str(name)[:50], TASK_TYPES)}")
    return GameList(find_data(data), str(split), tuple(task_types or ()), strict, engine == "official", progress)


class _Every(NamedTuple):
    """All games of a split."""

    folder: Path
    source: str
    games: tuple[Game, ...]
    by_id: Mapping[str, Game]
    skipped: tuple[Skipped, ...]


def _read(data: Data, split: str, official: bool, progress: Progress | None) -> _Every:
    folder, source = data.open(split, progress)
    return _sorted_out(open_index(folder, progress), folder, split, source, official)


@lru_cache(maxsize=8)
def _sorted_out(index: Index, folder: Path, split: str, source: str, official: bool) -> _Every:
    """The games of an index; while it is the same object, lists share their games."""
    plays = (PLAYABLE, FAST_CANNOT) if official else (PLAYABLE,)
    games, skipped = [], []
    for name, entry in index.entries.items():
        game = f"{split}/{name}"
        if entry.status in plays:
            games.append(Game(game, folder / name / GAME_FILE, source, entry.task_type))
        else:
            skipped.append(Skipped(game, entry.why, entry.status in (DAMAGED, FAST_CANNOT)))
    return _Every(folder, source, tuple(games), {game.id: game for game in games}, tuple(skipped))


def _report(skipped: Sequence[Skipped], others: int, folder: Path, strict: bool) -> None:
    damaged = [game.reason.rstrip(".") for game in skipped if game.damaged]
    excluded = Counter(game.reason for game in skipped if not game.damaged)
    more = [f"and {len(damaged) - 3} more"] if len(damaged) > 3 else []
    total = f"of the {len(skipped) + others} games in {folder}"
    if strict and damaged:
        first = "; ".join([*damaged[:3], *more])
        raise EnvError(
            f"{len(damaged)} {total} cannot be played: {first}. Repair or remove them; without strict they are left out."
        )
    why = "; ".join([*damaged[:3], *more, *(f"{count} because {reason}" for reason, count in excluded.most_common())])
    hint = " With strict=True a game that cannot be read is an error." if damaged else ""
    warnings.warn(f"{len(skipped)} {total} are left out: {why}.{hint}", stacklevel=4)


def _variable() -> str | None:
    """`$ALFWORLD_DATA`, unless the package alfworld has set it when it was imported: to its default folder, which it creates empty."""
    value, default = os.environ.get(VARIABLE), os.path.expanduser("~/.cache/alfworld")
    empty = not os.path.isdir(os.path.join(default, JSON_FOLDER))
    return None if "alfworld.info" in sys.modules and value == default and empty else value


def _short(value: object) -> str:
    """A value for a message, however long it is."""
    text = repr(value[:200] if isinstance(value, str) else value)
    return text if len(text) <= 200 else f"{text[:200]}…"
