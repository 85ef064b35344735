"""Every game of a folder read once: which can be played, which is damaged, which is left out, and why.

Reading takes 2 to 5 ms a game, so thousands are shared out to processes of their own. These are started as commands, not by
`multiprocessing`: that imports the user's script again, and refuses to work inside the worker of an `AsyncVectorEnv`.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import skill_ttrl
from skill_ttrl.cores import cores
from skill_ttrl.envs.alfworld.game import GAME_FILE, TASK_TYPES, read_content, read_game_file
from skill_ttrl.errors import EnvError

PLAYABLE, FAST_CANNOT, DAMAGED, EXCLUDED = "playable", "fast cannot", "damaged", "excluded"
"""Status of a game: playable; only for the official engine; unreadable; or excluded, by ALFWorld too, for its name or because it is
none of the six task types or not known to be solvable."""
NOT_PLAYED = ("movable", "Sliced")
"""ALFWorld's own environment leaves out folders with these in their names."""
GAMES_PER_PROCESS = 250
"""Fewer are read before another process has started."""
MAX_PROCESSES = 8

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
    """Read many games, in several processes where that is faster; what was found, in the order of `names`.

    Raises:
        EnvError: a process ended early.
    """
    done, lock = itertools.count(1), threading.Lock()

    def count(found: Found) -> Found:
        with lock:  # of all processes together
            if progress is not None:
                progress(next(done), len(names))
        return found

    processes = min(len(names) // GAMES_PER_PROCESS, cores(), MAX_PROCESSES)
    if processes < 2 or not sys.executable:
        return [count(look_at(folder, name)) for name in names]
    started, over = list[subprocess.Popen[bytes]](), threading.Event()
    with ThreadPoolExecutor(processes) as pool:
        try:
            shares = [names[number::processes] for number in range(processes)]
            parts = list(pool.map(lambda share: _elsewhere(folder, share, count, started, over), shares))
        finally:
            over.set()
            for process in started:  # after an error or Ctrl-C; those that have ended do not mind
                process.kill()
                process.wait()
    found: list[Found] = [Found("", DAMAGED, "")] * len(names)
    for number, part in enumerate(parts):
        found[number::processes] = part
    return found


def main() -> None:
    """The work of one process: names on the standard input, what was found on the output, a line of JSON each."""
    folder = Path(sys.argv[1])
    for line in sys.stdin:
        print(json.dumps(look_at(folder, json.loads(line))), flush=True)


def _elsewhere(
    folder: Path,
    names: Sequence[str],
    count: Callable[[Found], Found],
    started: list[subprocess.Popen[bytes]],
    over: threading.Event,
) -> list[Found]:
    """`look_at` for some of the games, in a process of their own."""
    command = [sys.executable, "-P", "-m", __name__, str(folder)]
    with tempfile.TemporaryFile() as asked:  # not a pipe: both sides would wait for each other once two are full
        asked.write("".join(json.dumps(name) + "\n" for name in names).encode())
        asked.seek(0)
        try:
            process = subprocess.Popen(
                command,
                stdin=asked,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=_environment(),
                process_group=0,  # Ctrl-C is for this process, which ends the others
            )
        except OSError as error:
            raise EnvError(f"Cannot start a process to read the games in {folder}: {error}.") from None
        started.append(process)
        if over.is_set():  # Ctrl-C came while it started: whoever ends the others has not seen this one
            process.kill()
        with process:
            assert process.stdout is not None and process.stderr is not None
            found = [count(Found(*json.loads(line))) for line in process.stdout]
            said = process.stderr.read().decode(errors="replace")
    if process.returncode or len(found) != len(names):
        raise EnvError(
            f"A process that read the games in {folder} ended early (status {process.returncode}): "
            f"{said.strip()[-500:] or 'it said nothing'}"
        )
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


def _environment() -> dict[str, Any]:
    """The environment, with this package on the import path where it is not installed."""
    home = str(Path(skill_ttrl.__file__).parents[1])
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [home, os.environ.get("PYTHONPATH")]))}


if __name__ == "__main__":
    main()
