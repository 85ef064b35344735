"""Generated games beside the official training games: how large, how cluttered, how long to solve.

ALFWORLD_DATA=... python benchmarks/alfworld_generated.py               # a table of benchmarks/results/alfworld.md
ALFWORLD_DATA=... python benchmarks/alfworld_generated.py --games 120   # fewer generated ones, of 1,200
"""

from __future__ import annotations

import argparse
import tempfile
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean

from skill_ttrl.envs.alfworld.engine import FastEngine
from skill_ttrl.envs.alfworld.games import TASK_TYPES, Game, load_game, open_games
from skill_ttrl.envs.alfworld.maker import write_games

COLUMNS = ("receptacles", "that open", "things", "admissible", "steps", "open a door", "share a place")


def figures(game: Game) -> tuple[float, ...]:
    """One game's row, in the order of `COLUMNS`."""
    loaded = load_game(game.path)
    world, commands = loaded.world, FastEngine(loaded.world).reset().commands
    standing = set(world.in_sight)
    shared = sum(len(there) for there in world.receptacles_at.values() if len(there) > 1)
    return (
        len(standing),
        len(standing & world.openable),
        len({thing for things in world.contents.values() for thing in things}),
        len(commands),
        len(loaded.walkthrough),
        any(command.startswith("open ") for command in loaded.walkthrough),
        shared / len(standing),
    )


def means(games: Iterable[Game]) -> dict[str, list[float]]:
    """Task type → mean of each column."""
    rows: dict[str, list[tuple[float, ...]]] = defaultdict(list)
    for game in games:
        rows[game.task_type].append(figures(game))
    return {kind: [fmean(column) for column in zip(*rows[kind], strict=True)] for kind in TASK_TYPES}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--games", type=int, default=1200)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        write_games(Path(folder), "train", args.games)
        ours = means(open_games(folder, "train"))
    official = means(open_games(None, "train"))
    print(f"generated / official\n| type | {' | '.join(COLUMNS)} |\n|{'---|' * (len(COLUMNS) + 1)}")
    for kind in TASK_TYPES:
        cells = [f"{a:.2f} / {b:.2f}" for a, b in zip(ours[kind], official[kind], strict=True)]
        print(f"| {kind} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
