"""Tables of reinforcement after imitation: a change is paired over games, and of several seeds over the games' means."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from skill_ttrl.stages.evaluation.results import Evaluation, ProblemResult
from skill_ttrl.statistics import paired_difference
from skill_ttrl.types import to_json

GAMES = ("a", "b", "c", "d")


@pytest.fixture
def rl(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "benchmarks"))
    return import_module("alfworld_rl")


def finished(output: Path, name: str, won: tuple[int, ...], *, of: int = 4) -> None:
    """A run and its evaluation: how many of the samples of each game are won, games in the wrong order."""
    (output / name).mkdir()
    times = [{"phase": "rl", "step": step, "seconds": 9.0, "cpu_seconds": 2.0} for step in range(3)]
    rows = [*times, {"phase": "evaluate", "step": 3, "seconds": 9.0}]
    (output / name / "timings.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    none: dict[str, Any] = dict.fromkeys(
        (
            "accuracy",
            "accuracy_interval",
            "majority",
            "majority_interval",
            "greedy",
            "greedy_interval",
            "majority_ratio",
            "entropy",
        )
    )
    results = tuple(
        ProblemResult(game, count, of, None, 0.0, None, greedy_correct=count == of)
        for game, count in reversed(list(zip(GAMES, won, strict=True)))
    )
    evaluation = Evaluation(
        "after", "valid_unseen", 4, of, 0.4, pass_at_k={}, by_temperature={}, results=results, **none
    )
    (output / f"{name}.json").write_text(to_json(evaluation))


def test_a_change_is_paired_over_games(rl: Any, tmp_path: Path) -> None:
    finished(tmp_path, "cold-1000-0", (0, 4, 1, 2))
    finished(tmp_path, "grpo-0", (2, 4, 1, 4))
    first, second = rl.changes(tmp_path, ["grpo", "coin"], [0, 1]).splitlines()[2:]
    change, low, high = paired_difference([0, 1, 0.25, 0.5], [0.5, 1, 0.25, 1])
    assert first == f"| grpo | T = 0.4 | 0 | 0.438 | 0.688 | {change:+.3f} [{low:+.3f}, {high:+.3f}] | 6 |"
    assert second.startswith("| grpo | greedy | 0 | 0.250 | 0.500 | +0.250")


def test_seeds_are_pooled_game_by_game(rl: Any, tmp_path: Path) -> None:
    for seed, (before, after) in enumerate([((0, 4, 1, 2), (2, 4, 1, 4)), ((2, 2, 3, 0), (4, 2, 3, 2))]):
        finished(tmp_path, f"cold-1000-{seed}", before)
        finished(tmp_path, f"grpo-{seed}", after)
    pooled = next(line for line in rl.changes(tmp_path, ["grpo"], [0, 1]).splitlines() if "| all |" in line)
    _, low, high = paired_difference([0.25, 0.75, 0.5, 0.25], [0.75, 0.75, 0.5, 0.75])
    assert pooled.startswith(f"| grpo | T = 0.4 | all | 0.438 | 0.688 | +0.250 [{low:+.3f}, {high:+.3f}] |")
    assert "| 1000 | T = 0.4 | 0.438 0.438 | 0.438 [" in rl.worth(tmp_path, [500, 1000], [0, 1])
