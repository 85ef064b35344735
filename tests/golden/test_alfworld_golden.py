"""The fast engine against transcripts of the official one: benchmarks/alfworld_record.py recorded one hash per frame."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.alfworld_walks import DIGEST_BYTES, WALKS, digest, walk
from skill_ttrl.envs.alfworld.engine import MAX_STEPS, FastEngine
from skill_ttrl.envs.alfworld.games import GAME_FILE, load_game

RECORDED = Path(__file__).parents[1] / "data" / "alfworld_transcripts.jsonl"
DIGITS = 2 * DIGEST_BYTES


def recorded() -> dict[str, dict[str, list[str]]]:
    """Game → walk → its hashes."""
    games = map(json.loads, RECORDED.read_text().splitlines())
    return {
        game["game"]: {
            name: [hashes[at : at + DIGITS] for at in range(0, len(hashes), DIGITS)]
            for name, hashes in game["walks"].items()
        }
        for game in games
    }


def test_every_validation_game_is_recorded_with_all_its_walks() -> None:
    games = recorded()
    assert Counter(name.partition("/")[0] for name in games) == {"valid_seen": 140, "valid_unseen": 134}
    for walks in games.values():
        assert tuple(walks) == WALKS
        assert all(len(walks[name]) == MAX_STEPS + 1 for name in WALKS if name != "walkthrough")
    assert sum(len(hashes) for walks in games.values() for hashes in walks.values()) == 57_770


@pytest.mark.slow
def test_the_fast_engine_gives_the_official_transcripts_byte_for_byte(official_games: Path) -> None:
    differences = []
    for name, walks in recorded().items():
        game = load_game(official_games / "json_2.1.1" / name / GAME_FILE)
        for kind in WALKS:
            played = walk(FastEngine(game.world), name, kind, game.walkthrough)
            hashes = [digest(frame) for _, frame in played]
            if hashes != walks[kind]:
                step = next(n for n, pair in enumerate(zip(hashes, walks[kind], strict=False)) if pair[0] != pair[1])
                differences.append(f"{name} {kind} step {step}")
    assert differences == []


@pytest.mark.slow
def test_every_official_solution_wins_and_no_game_begins_won(official_games: Path) -> None:
    for name in recorded():
        game = load_game(official_games / "json_2.1.1" / name / GAME_FILE)
        engine = FastEngine(game.world)
        assert not engine.reset().won
        assert [engine.step(command).won for command in game.walkthrough][-1], name
