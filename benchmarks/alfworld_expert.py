"""The exploring expert on ALFWorld's games, beside random play; and the table of where things are that it plays by.

    ALFWORLD_DATA=... python benchmarks/alfworld_expert.py play                          # both validation splits
    ALFWORLD_DATA=... python benchmarks/alfworld_expert.py play --split train --every 10
    ALFWORLD_DATA=... python benchmarks/alfworld_expert.py places                        # counted in the split train

`play` prints, for each type of task, the share of games won within 50 steps with its Wilson interval (95 %) and the mean steps
of an episode, a lost one counted as 50. Beside the expert and the random player stands the expert without its table, for which
every receptacle is as likely as any other. `places` prints what stands in `agents/alfworld_places.py`; a test compares the two.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean
from unittest.mock import patch

from rich.console import Console
from rich.table import Table

from skill_ttrl.agents.player import make_player
from skill_ttrl.envs.alfworld.env import ALFWORLD_ENV_ID, ALFWorldEnv
from skill_ttrl.envs.alfworld.game import TASK_TYPES, Game, load_game
from skill_ttrl.envs.alfworld.games import open_games
from skill_ttrl.episode import play_episode
from skill_ttrl.runs.statistics import wilson_interval
from skill_ttrl.types import Trajectory

ALL = "all"
FEWEST = 30
"""Rooms that a kind of thing must have been seen in for a line of its own."""


def play(data: Path | None, split: str, agent: str, every: int = 1) -> dict[str, list[Trajectory]]:
    """Type of task → an episode of each of its games; every `every`-th game of the split."""
    env = ALFWorldEnv(data=data, split=split)
    player = make_player(agent, ALFWORLD_ENV_ID)
    episodes: dict[str, list[Trajectory]] = {name: [] for name in (*TASK_TYPES, ALL)}
    for task in env.tasks()[::every]:
        episode = play_episode(env, task, player, seed=0)
        if episode.error:
            raise SystemExit(f"{task.id}: {episode.error}")
        for name in (task.task_type, ALL):
            episodes[str(name)].append(episode)
    return episodes


def figures(episodes: Sequence[Trajectory]) -> str:
    """Share won, its interval, and the mean steps."""
    won = sum(episode.stop_reason == "terminated" for episode in episodes)
    low, high = wilson_interval(won, len(episodes))
    steps = fmean(len(episode.steps) for episode in episodes)
    return f"{100 * won / len(episodes):.1f} ({100 * low:.1f} to {100 * high:.1f}), {steps:.1f} steps"


def count_places(games: Iterable[Game]) -> str:
    """The table of `agents/alfworld_places.py`.

    A line for each kind of thing that can be taken or turned on: of all receptacles of a kind, in the rooms that have such a thing, the percentage that
    hold one at the start. Below half a per cent it is left out, and so are things that fewer than `FEWEST` rooms have.
    """
    holding: dict[str, Counter[str]] = defaultdict(Counter)
    standing: dict[str, Counter[str]] = defaultdict(Counter)
    rooms: Counter[str] = Counter()
    for game in games:
        world = load_game(game.path).world
        of_use = world.able["pickupable"] | world.able["toggleable"]
        receptacles = [
            (
                _kind(world.names[place]),
                {_kind(world.names[thing]) for thing in of_use & set(world.contents.get(place, ()))},
            )
            for place in world.in_sight
        ]
        for thing in {thing for _, things in receptacles for thing in things}:
            rooms[thing] += 1
            standing[thing].update(place for place, _ in receptacles)
            holding[thing].update(place for place, things in receptacles if thing in things)
    lines = []
    for thing in sorted(name for name, seen in rooms.items() if seen >= FEWEST):
        shares = {place: round(100 * held / standing[thing][place]) for place, held in holding[thing].items()}
        ranked = sorted((-share, place) for place, share in shares.items() if share)
        lines.append(f"{thing}: " + ", ".join(f"{place} {-share}" for share, place in ranked))
    return "\n".join(lines) + "\n"


def _kind(name: str) -> str:
    return name.rpartition(" ")[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["play", "places"])
    parser.add_argument("--data", type=Path, help="folder with json_2.1.1; else $ALFWORLD_DATA")
    parser.add_argument("--split", action="append", help="may be given several times")
    parser.add_argument("--every", type=int, default=1, help="only every n-th game")
    args = parser.parse_args()
    if args.what == "places":
        sys.stdout.write(count_places(open_games(args.data, "train")))
        return
    for split in args.split or ["valid_unseen", "valid_seen"]:
        columns = {name: play(args.data, split, name, args.every) for name in ("expert", "random")}
        with patch("skill_ttrl.agents.alfworld_expert.chance", lambda thing, place: 1.0):
            columns["expert without its table"] = play(args.data, split, "expert", args.every)
        table = Table("type", "games", *columns, title=f"{split}: won, in %")
        for name, episodes in columns["expert"].items():
            if episodes:
                table.add_row(name, str(len(episodes)), *(figures(column[name]) for column in columns.values()))
        Console(width=150).print(table)


if __name__ == "__main__":
    main()
