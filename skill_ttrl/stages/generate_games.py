"""Games of our own for an environment, into a folder: `skillttrl envs generate`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from skill_ttrl.envs.alfworld.maker.generate import SEED, generate_games, read_record
from skill_ttrl.errors import EnvError
from skill_ttrl.progress import Counting, Progress, SilentProgress
from skill_ttrl.signals import StopSignal

ENVIRONMENTS = ("alfworld",)
"""Those whose games can be made."""
PHASE = "games"


@dataclass(frozen=True, slots=True)
class GeneratedGames:
    """What `run` has made."""

    folder: str
    """What `data` takes."""
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
    env: str,
    split: str,
    games: int,
    output: str | Path,
    *,
    seed: int = SEED,
    types: Sequence[str] | None = None,
    progress: Progress | None = None,
) -> GeneratedGames:
    """Make games of one split; called again with the same arguments, or with more games, it goes on.

    Args:
        env: `alfworld`.
        split: `train`, `valid_seen` or `valid_unseen`.
        games: how many there are to be.
        output: the folder, which other splits may share.
        seed: of everything that is drawn.
        types: only these types of task; None: all.
        progress: told after every game.

    Raises:
        EnvError: no games can be made for `env`, or see `generate_games`.
        RunFolderError: another process is writing there.
        Interrupted: a signal came; the games that are there are whole.
    """
    if env not in ENVIRONMENTS:
        raise EnvError(f"Games can be made for {', '.join(ENVIRONMENTS)}, not for {env!r:.60}.")
    started = time.monotonic()
    tell = Counting(progress or SilentProgress(), PHASE, "game")
    with (
        StopSignal() as stop,
        stop.interruptible("Stopped. The games that are there are whole; the same command goes on."),
    ):
        written = generate_games(output, split, games, seed, types, tell)
    record = (read_record(Path(output)) or {})["splits"][split]
    return GeneratedGames(
        folder=str(output),
        split=split,
        games=record["games"],
        written=written,
        seed=seed,
        task_types=tuple(record["task_types"]),
        seconds=round(time.monotonic() - started, 1),
    )
