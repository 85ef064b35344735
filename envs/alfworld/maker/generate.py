"""Writes generated games to a folder, in the layout of the official release; each game is written completely or not at all.

For users without the official data. The official engine reads these games as well; next to each lies the `traj_data.json` that the
package's `AlfredTWEnv` requires.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skill_ttrl.envs.alfworld.game import GAME_FILE, GENERATED_FILE, JSON_FOLDER, SPLITS, TASK_TYPES
from skill_ttrl.envs.alfworld.index import Progress
from skill_ttrl.envs.alfworld.maker.maker import GENERATOR, Generated, generated
from skill_ttrl.envs.alfworld.maker.ontology import read_ontology
from skill_ttrl.errors import EnvError, did_you_mean
from skill_ttrl.progress import Counting, SilentProgress
from skill_ttrl.progress import Progress as RunProgress
from skill_ttrl.signals import StopSignal
from skill_ttrl.storage.cache import cache_folder, made_whole, remove_unfinished, waiting_for
from skill_ttrl.storage.files import acquire_lock, release_lock, write_atomic

SCHEMA = 1
SEED = 0
COUNTS: Mapping[str, int] = {"train": 240, "valid_seen": 60, "valid_unseen": 60}
"""Games of each split that are made where no official ones are given."""
MAX_GAMES = 1_000_000


def counts(train: int) -> dict[str, int]:
    """Games of each split of a default series of `train` training games: a tenth of them in each of the others, at least 60."""
    return {split: train if split == "train" else max(count, train // 10) for split, count in COUNTS.items()}


@dataclass(frozen=True, slots=True)
class GeneratedGames:
    """Games of one split as `run` leaves them."""

    folder: str
    """Value for `data`."""
    split: str
    games: int
    """In the folder now."""
    written: int
    """By this call; the others were there."""
    seed: int
    task_types: tuple[str, ...]
    """The types that take turns."""
    seconds: float


def run(
    output: str | Path,
    split: str,
    games: int,
    *,
    seed: int = SEED,
    types: Sequence[str] | None = None,
    progress: RunProgress | None = None,
) -> GeneratedGames:
    """Write games of one split, as `skillttrl envs generate alfworld` does: see `generate_games`.

    Raises:
        EnvError, RunFolderError: see `generate_games`.
        Interrupted: a signal came; the games that are there are whole.
    """
    started = time.monotonic()
    count = Counting(progress or SilentProgress(), "games", "game")
    stopped = "Stopped. The games written so far are complete; the same command continues."
    with StopSignal() as stop, stop.interruptible(stopped):
        written = generate_games(output, split, games, seed, types, count)
    record = (read_record(Path(output)) or {})["splits"][split]
    seconds = round(time.monotonic() - started, 1)
    return GeneratedGames(str(output), split, record["games"], written, seed, tuple(record["task_types"]), seconds)


def ensure_generated(split: str, progress: Progress | None = None, train: int | None = None) -> Path:
    """Return the folder of the default games; the first call generates them, in seconds, and stores them in the user's cache.

    The folder appears with all splits or not at all, even if two processes start at once. By default it has 240 training games and 60 in
    each of the other splits, about 25 MB. `XDG_CACHE_HOME` moves the cache.

    Args:
        split: checked to be `train`, `valid_seen` or `valid_unseen`; all three are generated.
        progress: called with (games done, games in total) while games are generated.
        train: number of training games, see `counts` for the other splits; None: 240.

    Returns:
        A folder with `json_2.1.1/` and `generated.json`.

    Raises:
        EnvError: there is no such split, `train` is out of range, the package alfworld is not installed, or the cache cannot be written.
    """
    _check_split(split)
    cache = cache_folder("alfworld")
    train = COUNTS["train"] if train is None else train
    if not 1 <= train <= MAX_GAMES:
        raise EnvError(f"Choose from 1 to {MAX_GAMES:,} games, found {train:,}.")
    size = "" if train == COUNTS["train"] else f"-{train}"
    root = cache / f"generated-{GENERATOR}-alfworld-{read_ontology().version}{size}"
    if (root / GENERATED_FILE).is_file():
        return root
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with waiting_for(cache / ".lock"):
            if not (root / GENERATED_FILE).is_file():
                _make_whole(root, counts(train), progress)
    except OSError as error:
        raise EnvError(
            f"The generated games cannot be stored in {cache}: {error.strerror or error}. Free some space, or set XDG_CACHE_HOME "
            "to a folder that can be written; or make them elsewhere with `skillttrl envs generate alfworld -o FOLDER` and "
            "give that folder as data."
        ) from error
    return root


def generate_games(
    root: str | Path,
    split: str,
    count: int,
    seed: int = SEED,
    task_types: Sequence[str] | None = None,
    progress: Progress | None = None,
) -> int:
    """Write games of one split to a folder of the user's, next to those of other splits.

    An interrupted call leaves only complete games, and the same call continues it. A longer series contains the games of a shorter one.

    Args:
        root: the folder; receives `json_2.1.1/SPLIT/` and `generated.json`.
        split: determines the rooms, and for `train` and `valid_seen`, which share rooms, the goals in them.
        count: number of games in the split afterwards, at least 1; the types take turns.
        seed: seed of all random choices.
        task_types: only these; None: all six.
        progress: called after every game with (games done, `count`).

    Returns:
        Number of games written, without those that existed already.

    Raises:
        EnvError: an argument is not known, the split has other games already, or the folder cannot be written.
        RunFolderError: another process is writing there.
    """
    root = Path(root)
    _check_split(split)
    types = _checked_types(task_types)
    if not 1 <= count <= MAX_GAMES:
        raise EnvError(f"Choose from 1 to {MAX_GAMES:,} games, found {count:,}.")
    wanted = {"games": count, "seed": seed, "task_types": list(types)}
    read_ontology()  # where the package is missing, no folder is made either
    try:
        root.mkdir(parents=True, exist_ok=True)
        lock = acquire_lock(root)
        try:
            return _write_split(root, split, _open_record(root, split, wanted), progress)
        finally:
            release_lock(root, lock)
    except OSError as error:
        raise EnvError(
            f"Cannot write games to {root}: {error.strerror or error}. Free some space, or choose another folder."
        ) from error


def read_record(root: Path) -> dict[str, Any] | None:
    """Read `generated.json`, the record of the games in a folder; None if there is none.

    Returns:
        `schema`, `generator`, `alfworld` (version of the package) and `splits`: split → `games`, `seed`, `task_types`, and
        `complete`, False until all of them are written.

    Raises:
        EnvError: it cannot be read, or is of another schema.
    """
    path = root / GENERATED_FILE
    try:
        record = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise EnvError(f"{path} cannot be read: {error}. Remove its folder and make the games again.") from None
    if not isinstance(record, dict) or record.get("schema") != SCHEMA or not isinstance(record.get("splits"), dict):
        raise EnvError(f"{path} is not a record of generated games that this version can read. Choose another folder.")
    return record


def _open_record(root: Path, split: str, wanted: dict[str, Any]) -> dict[str, Any]:
    """Return the record with the wanted games of a split; raises `EnvError` if the split cannot be started or continued."""
    made_by = {"schema": SCHEMA, "generator": GENERATOR, "alfworld": read_ontology().version}
    target = root / JSON_FOLDER / split
    record = read_record(root) or {**made_by, "splits": {}}
    there = record["splits"].get(split)
    if {name: record.get(name) for name in made_by} != made_by:
        raise EnvError(f"The games in {root} were made by another version. Choose another folder.")
    own = target if record["splits"] else root / JSON_FOLDER
    if there is None and own.is_dir() and any(own.iterdir()):
        raise EnvError(f"{own} has games that were not generated, or not by this package. Choose another folder.")
    if there is not None:
        others = [f"{name} {there.get(name)}" for name in ("seed", "task_types") if there.get(name) != wanted[name]]
        if there.get("games", 0) > wanted["games"]:
            others.append(f"games {there['games']}")
        if others:
            raise EnvError(f"{target} already has a series with {' and '.join(others)}. Choose another folder.")
    record["splits"][split] = {**wanted, "complete": False}
    return record


def _write_split(root: Path, split: str, record: dict[str, Any], progress: Progress | None) -> int:
    """Write the games of a split by the record, and return how many. Writes the record first: games without one would pass for official."""
    wanted = record["splits"][split]
    target = root / JSON_FOLDER / split
    target.mkdir(parents=True, exist_ok=True)
    remove_unfinished(root)
    _write_record(root, record)
    written = 0
    series = itertools.islice(generated(split, wanted["seed"], wanted["task_types"]), wanted["games"])
    for number, made in enumerate(series, 1):
        folder = target / made.goal.folder / made.trial
        if not folder.is_dir():
            _write(root, folder, made)
            written += 1
        if progress is not None:
            progress(number, wanted["games"])
    _write_record(root, {**record, "splits": {**record["splits"], split: {**wanted, "complete": True}}})
    return written


def _write(root: Path, folder: Path, made: Generated) -> None:
    """Write a game and its `traj_data.json` in one step: a folder that exists is complete."""
    with made_whole(folder, within=root) as beside:
        for name, content in ((GAME_FILE, made.game), ("traj_data.json", made.trajectory)):
            (beside / name).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        folder.parent.mkdir(exist_ok=True)


def _write_record(root: Path, record: Mapping[str, Any]) -> None:
    write_atomic(root / GENERATED_FILE, (json.dumps(record, indent=1) + "\n").encode())


def _make_whole(root: Path, wanted: Mapping[str, int], progress: Progress | None) -> None:
    """Write all splits to a temporary folder next to `root`, then rename it to `root` in one step."""
    remove_unfinished(root.parent)
    number, total = itertools.count(1), sum(wanted.values())
    with made_whole(root) as beside:
        for split, count in wanted.items():
            record = _open_record(beside, split, {"games": count, "seed": SEED, "task_types": list(TASK_TYPES)})
            _write_split(beside, split, record, progress and (lambda *_: progress(next(number), total)))


def _check_split(split: str) -> None:
    if split not in SPLITS:
        raise EnvError(f"There are no generated games of a split {split!r:.60}.{did_you_mean(split, SPLITS)}")


def _checked_types(task_types: Sequence[str] | None) -> tuple[str, ...]:
    for name in task_types or ():
        if name not in TASK_TYPES:
            raise EnvError(f"ALFWorld has no task type {name!r:.60}.{did_you_mean(name, TASK_TYPES)}")
    return tuple(name for name in TASK_TYPES if not task_types or name in task_types)
