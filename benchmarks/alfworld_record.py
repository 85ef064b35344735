"""Record the official engine's transcripts of ALFWorld's validation games, one hash per frame.

    ALFWORLD_DATA=... python benchmarks/alfworld_record.py tests/data/alfworld_transcripts.jsonl
    ALFWORLD_DATA=... python benchmarks/alfworld_record.py plain.jsonl --every 12 --plain

Five walks a game (benchmarks/alfworld_walks.py), about 57,000 steps for the 274 games. Two processes take 15 to 30
minutes; stopped and called again, it goes on after the last whole game. The official engine parses the same template texts
again at every step: here each is parsed once and copied (`--plain` leaves the engine as it is, three times slower; the
hashes of both must be equal). Needs the extra `alfworld`.
"""

from __future__ import annotations

import argparse
import copy
import json
import multiprocessing
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from alfworld_official import OfficialEngine
from alfworld_walks import WALKS, digest, walk

SPLITS = ("valid_seen", "valid_unseen")


def record(root: Path, name: str) -> dict[str, Any]:
    """All walks of one game: {"game": name, "walks": {walk: hashes in a row}}."""
    path = root / name / "game.tw-pddl"
    engine = OfficialEngine(path)
    walkthrough = json.loads(path.read_text())["walkthrough"]
    walks = {kind: "".join(digest(frame) for _, frame in walk(engine, name, kind, walkthrough)) for kind in WALKS}
    return {"game": name, "walks": walks}


def parse_once() -> None:
    """Give the engine's two text parsers a memory; what they return is copied, since the engine writes on it."""
    from textworld.envs.pddl import textgen
    from textworld.logic import Rule

    parse, query = textgen._parse_and_convert, Rule.parse_conjunctive_query
    symbols: dict[tuple[Any, ...], Any] = {}
    rules: dict[str, Any] = {}

    def parse_symbols(*args: Any, **kwargs: Any) -> Any:
        key = (*args, kwargs.get("rule_name"))
        if key not in symbols:
            symbols[key] = parse(*args, **kwargs)
        return copy.deepcopy(symbols[key])

    def parse_query(expression: str) -> Any:
        if expression not in rules:
            rules[expression] = query(expression)
        return rules[expression]

    textgen._parse_and_convert = parse_symbols
    Rule.parse_conjunctive_query = parse_query


def _one(task: tuple[Path, str]) -> dict[str, Any]:
    return record(*task)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--every", type=int, default=1, help="every n-th game only")
    parser.add_argument("--plain", action="store_true", help="the engine's own parsing at every step")
    parser.add_argument("--processes", type=int, default=2)
    args = parser.parse_args()
    root = Path(os.environ["ALFWORLD_DATA"]) / "json_2.1.1"
    names = [str(path.parent.relative_to(root)) for split in SPLITS for path in root.glob(f"{split}/*/*/game.tw-pddl")]
    names = sorted(names)[:: args.every]
    partial = args.output.with_name(args.output.name + ".partial")
    done = _whole(partial)
    todo = [(root, name) for name in names if name not in done]
    start = time.monotonic()
    context = multiprocessing.get_context("spawn")
    with (
        partial.open("a") as file,
        context.Pool(args.processes, None if args.plain else parse_once, maxtasksperchild=20) as pool,
    ):
        for number, game in enumerate(pool.imap_unordered(_one, todo), start=1):
            done[game["game"]] = game
            file.write(json.dumps(game) + "\n")
            file.flush()
            print(f"{number} of {len(todo)} games, {time.monotonic() - start:.0f} s", flush=True)
    args.output.write_text("".join(json.dumps(done[name]) + "\n" for name in names))
    partial.unlink()


def _whole(partial: Path) -> dict[str, Mapping[str, Any]]:
    """Games that were recorded before; a last line that was cut off is dropped from the file."""
    if not partial.exists():
        return {}
    lines = [line for line in partial.read_text().splitlines(keepends=True) if line.endswith("\n")]
    partial.write_text("".join(lines))
    return {game["game"]: game for game in map(json.loads, lines)}


if __name__ == "__main__":
    main()
