"""Every game of a folder read once: which can be played, which is damaged, which is left out, and why.

Reading takes 2 to 5 ms a game.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from skill_ttrl.envs.alfworld.game import GAME_FILE, TASK_TYPES, read_content, read_game_file
from skill_ttrl.errors import EnvError

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
