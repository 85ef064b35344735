"""The table of where things are that ALFWorld's exploring expert plays by: how it was counted, and what it is worth.

    python benchmarks/alfworld_expert.py places        # prints the table of envs/alfworld/expert_places.txt
    python benchmarks/alfworld_expert.py worth         # the expert with it, and with every receptacle equally likely

Both need the official games ($ALFWORLD_DATA, or --data). How the expert does by type of task, with intervals, is what
`skillttrl evaluate expert --env alfworld` prints.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from statistics import fmean
from unittest.mock import patch

from skill_ttrl.envs.alfworld.env import ALFWorldEnv
from skill_ttrl.envs.alfworld.expert import ALFWorldExpert
from skill_ttrl.envs.alfworld.games import Game, load_game, open_games
from skill_ttrl.rollout.rollout import run_scripted_episode

FEWEST = 30
"""Rooms that a kind of thing must have been seen in for a line of its own."""


def count_places(games: Iterable[Game]) -> str:
    """The table of `envs/alfworld/expert_places.txt`.

    A line for each kind of thing that can be taken or turned on: of all receptacles of a kind, in the rooms that have such a
    thing, the percentage that hold one at the start. Below half a per cent it is left out, and so are things that fewer than
    `FEWEST` rooms have.
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


def worth(data: Path | None, split: str) -> str:
    """Games won and mean steps (a lost game counts in full), with the table and without."""
    env, expert = ALFWorldEnv(data=data, split=split), ALFWorldExpert()
    columns = []
    for name, chance in (("with", None), ("without", lambda thing, place: 1.0)):
        with patch("skill_ttrl.envs.alfworld.expert.chance", chance) if chance else nullcontext():
            episodes = [run_scripted_episode(env, task, expert, seed=0) for task in env.tasks()]
        won = sum(episode.stop_reason == "terminated" for episode in episodes)
        steps = fmean(len(episode.steps) for episode in episodes)
        columns.append(f"{name} the table {won} of {len(episodes)} won in {steps:.1f} steps")
    return f"{split}: " + ", ".join(columns)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["places", "worth"])
    parser.add_argument("--data", type=Path, help="folder with json_2.1.1; else $ALFWORLD_DATA")
    args = parser.parse_args()
    if args.what == "places":
        sys.stdout.write(count_places(open_games(args.data, "train")))
        return
    for split in ("valid_unseen", "valid_seen", "train"):
        print(worth(args.data, split), flush=True)


if __name__ == "__main__":
    main()
