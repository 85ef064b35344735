"""The fast engine of ALFWorld beside the official one: steps, loading, resets; memory of many environments; the index.

    ALFWORLD_DATA=... python benchmarks/alfworld_speed.py                  # 24 games, about 4 minutes
    ALFWORLD_DATA=... python benchmarks/alfworld_speed.py --games 6 --steps 20 --json speed.json

Both engines play the same commands in the same games, one after the other in one process, and must show the same frames; the
official one is as its package has it. Needs the extra `alfworld`, the official games, and a machine that does little else.

- first pass: the game was never played before in this process; steady: the same commands again and again for half a second
- memory: a fresh process, resident, after 256 environments have each played 50 steps of another game
- index: a fresh cache; "open" is what a second process waits for, with Python's start and the imports apart
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
from alfworld_official import OfficialEngine
from alfworld_walks import Engine, walk

from skill_ttrl.envs import make_vec_env
from skill_ttrl.envs.alfworld.engine import FastEngine, Frame
from skill_ttrl.envs.alfworld.games import TASK_TYPES, Game, load_game, open_games, read_content, read_game_file

STEADY_SECONDS = 0.5
ENVIRONMENTS = 256


def main() -> None:
    """Measure, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="folder with json_2.1.1/; $ALFWORLD_DATA where it is not given")
    parser.add_argument("--games", type=int, default=24, help="of valid_unseen, as many of each task type as possible")
    parser.add_argument("--steps", type=int, default=50, help="of each game, by both engines")
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    parser.add_argument("--only", choices=["memory", "index"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        print(json.dumps(_memory(options.data) if options.only == "memory" else _index(options.data)))
        return
    figures: dict[str, Any] = {
        "machine": f"{os.cpu_count()} cores ({platform.machine()}), Python {platform.python_version()}",
        "load": os.getloadavg()[0],
        "games": [_side_by_side(game, options.steps) for game in _stratified(options.data, options.games)],
        "memory": _elsewhere("memory", options.data),
    }
    with tempfile.TemporaryDirectory() as cache:
        figures["index"] = [_elsewhere("index", options.data, cache) for _ in range(2)]
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1))
    _print(figures)


def _stratified(data: str | None, count: int) -> list[Game]:
    """Games of all task types in turn, drawn with a fixed seed."""
    games = open_games(data, "valid_unseen")
    rng = random.Random(0)
    by_type = {
        kind: rng.sample(own, len(own)) for kind in TASK_TYPES if (own := [g for g in games if g.task_type == kind])
    }
    turns = [own[turn] for turn in range(len(games)) for own in by_type.values() if turn < len(own)]
    return turns[:count]


def _side_by_side(game: Game, steps: int) -> dict[str, Any]:
    """One game by both engines."""
    start = time.perf_counter()
    loaded = read_content(game.path, read_game_file(game.path))
    fast = FastEngine(loaded.world)
    fast.reset()
    fast_load = time.perf_counter() - start
    # The walk is chosen on a world of its own, so that the first pass below meets nothing that is known already.
    chooser = FastEngine(load_game(game.path).world)
    commands = [command for command, _ in walk(chooser, game.id, "random-2", loaded.walkthrough)][1 : steps + 1]
    first, ours = _timed(lambda: _play(fast, commands))
    passes, spent = 0, 0.0
    while spent < STEADY_SECONDS:
        fast.reset()
        spent += _timed(lambda: _play(fast, commands))[0]
        passes += 1
    steady = spent / passes

    official_load, official = _timed(lambda: OfficialEngine(game.path))
    official.reset()
    slow, theirs = _timed(lambda: _play(official, commands))
    if ours != theirs:
        raise SystemExit(
            f"{game.id}: the engines differ at step {[a == b for a, b in zip(ours, theirs, strict=True)].index(False)}"
        )
    return {
        "game": game.id,
        "steps": len(commands),
        "official steps/s": len(commands) / slow,
        "first pass steps/s": len(commands) / first,
        "steady steps/s": len(commands) / steady,
        "ratio first": slow / first,
        "ratio steady": slow / steady,
        "official load s": official_load,
        "official reset s": _timed(official.reset)[0],
        "fast load ms": fast_load * 1e3,
        "fast reset ms": statistics.median(_timed(fast.reset)[0] for _ in range(20)) * 1e3,
    }


def _play(engine: Engine, commands: Sequence[str]) -> list[Frame]:
    """Every frame of the commands."""
    return [engine.step(command) for command in commands]


def _timed(function: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = function()
    return time.perf_counter() - start, result


def _memory(data: str | None) -> dict[str, float]:
    """256 environments in this process, each with another game of the training split."""
    process = psutil.Process()
    before = process.memory_info().rss
    vector = make_vec_env("alfworld", ENVIRONMENTS, data=data, split="train")
    environments = vector.envs  # type: ignore[attr-defined]
    ids = [game.id for game in environments[0].unwrapped.games]
    rng = random.Random(0)
    listed = [
        env.reset(seed=number, options={"task": task})[1]["admissible_commands"]
        for number, (env, task) in enumerate(zip(environments, rng.sample(ids, len(environments)), strict=True))
    ]
    begin = time.perf_counter()
    for _ in range(50):
        listed = [
            env.step(rng.choice(own))[4]["admissible_commands"] for env, own in zip(environments, listed, strict=True)
        ]
    seconds = time.perf_counter() - begin
    played = process.memory_info().rss
    cached = [
        _timed(lambda env=env: env.reset(options={"task": env.unwrapped._played[0].id}))[0] for env in environments
    ]
    for task in ids:
        environments[0].reset(options={"task": task})
    return {
        "environments": len(environments),
        "bare MB": before / 2**20,
        "with environments MB": played / 2**20,
        "environment steps/s": 50 * len(environments) / seconds,
        "reset of a cached game ms, median": statistics.median(cached) * 1e3,
        "reset of a cached game ms, most": max(cached) * 1e3,
        "after all training games MB": process.memory_info().rss / 2**20,
    }


def _index(data: str | None) -> dict[str, float]:
    """Opening the training split, as a process of its own finds the cache."""
    seconds, games = _timed(lambda: open_games(data, "train"))
    return {"games": len(games), "seconds": seconds}


def _elsewhere(what: str, data: str | None, cache: str | None = None) -> dict[str, float]:
    command = [sys.executable, __file__, "--only", what, *(["--data", data] if data else [])]
    environment = {**os.environ, **({"XDG_CACHE_HOME": cache} if cache else {})}
    said = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True, text=True).stdout
    return dict(json.loads(said))


def _print(figures: dict[str, Any]) -> None:
    games = figures["games"]
    print(f"{figures['machine']}, load {figures['load']:.1f}. {len(games)} games of valid_unseen, {games[0]['steps']} steps each, "
          "all frames equal.\n")  # fmt: skip
    print("| | median | least | most |\n|---|---|---|---|")
    for name, digits in (
        ("official steps/s", 1), ("first pass steps/s", 0), ("steady steps/s", 0), ("ratio first", 0), ("ratio steady", 0),
        ("official load s", 2), ("official reset s", 2), ("fast load ms", 2), ("fast reset ms", 3),
    ):  # fmt: skip
        values = [game[name] for game in games]
        print(f"| {name} | " + " | ".join(f"{f(values):,.{digits}f}" for f in (statistics.median, min, max)) + " |")
    print("\n| 256 environments in one process | |\n|---|---|")
    for name, value in figures["memory"].items():
        print(f"| {name} | {value:,.2f} |")
    made, opened = figures["index"]
    print(
        f"\nIndex of {made['games']:,.0f} training games: made in {made['seconds']:.1f} s, opened in {opened['seconds']:.3f} s."
    )


if __name__ == "__main__":
    main()
