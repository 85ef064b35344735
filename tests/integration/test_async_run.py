"""Whole runs whose rollouts run ahead of the learner: equal where they must be, and within their staleness where they may differ."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from skill_ttrl.commands import train
from skill_ttrl.config import load_config
from tests.integration.test_episode_run import CONFIG
from tests.integration.test_kill_and_resume import SETTINGS as KILLED
from tests.integration.test_kill_and_resume import STEPS, assert_same, harness

SETTINGS = [
    "phases=[rl]", "rl.reward=random", "rl.steps=6", "rl.save_steps=3", "rl.warmup_steps=0", "rl.lr_scheduler=constant",
]  # fmt: skip
REPEATABLE = ["rl.max_staleness=1", "rl.in_flight_updates=false"]


def rows(folder: Path, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def assert_equal(one: Path, other: Path, *names: str) -> None:
    for name in names:
        assert (one / name).read_bytes() == (other / name).read_bytes(), name


@pytest.mark.slow
def test_without_staleness_the_weights_are_those_of_the_loop_that_takes_turns(tiny_yaml: Path, tmp_path: Path) -> None:
    # A checkpoint after each step: the copy samples in its thread, and nothing can run ahead.
    given = [*SETTINGS, "rl.save_steps=1"]
    ahead = [*given, "rl.max_staleness=3", "rl.rollout_correction=none"]
    summaries = [
        train.run(load_config(tiny_yaml, each), tmp_path / name) for name, each in (("turns", given), ("ahead", ahead))
    ]
    last = "checkpoints/rl-000006"
    same = ["trajectories.jsonl", "votes.jsonl", f"{last}/model.safetensors", f"{last}/trainer.pt"]
    assert_equal(tmp_path / "turns", tmp_path / "ahead", *same)
    for plain, row in zip(rows(tmp_path / "turns"), rows(tmp_path / "ahead"), strict=True):
        assert row == plain | {"staleness/mean": 0.0, "staleness/max": 0.0}
    assert not any("staleness" in name for row in rows(tmp_path / "turns") for name in row)
    assert [any("rollout_correction" in text for text in each.warnings) for each in summaries] == [False, True]


@pytest.mark.slow
def test_one_step_ahead_is_repeatable_also_over_a_stop_at_a_checkpoint(tiny_yaml: Path, tmp_path: Path) -> None:
    given = [*SETTINGS, *REPEATABLE]
    train.run(load_config(tiny_yaml, given), tmp_path / "once")
    train.run(load_config(tiny_yaml, [*given, "rl.steps=3"]), tmp_path / "again")
    train.run(load_config(tiny_yaml, given), tmp_path / "again", resume="auto")
    last = "checkpoints/rl-000006"
    same = ["metrics.jsonl", "trajectories.jsonl", f"{last}/model.safetensors", f"{last}/trainer.pt"]
    assert_equal(tmp_path / "once", tmp_path / "again", *same)
    found = rows(tmp_path / "once")
    assert [row["staleness/max"] for row in found] == [0, 1, 1, 0, 1, 1]
    gaps = [row["sampling/logp_difference/mean"] for row in found]
    assert max(gaps[0], gaps[3]) < 1e-5 < min(gaps[1], gaps[2], gaps[4], gaps[5]), "older weights do sample"
    assert all(0.5 < row["rollout_corr/rollout_is_eff_sample_size"] <= 1 for row in found)
    times = rows(tmp_path / "once", "timings.jsonl")
    assert all(row["wait_seconds"] <= row["seconds"] for row in times if row["phase"] == "rl")


@pytest.mark.slow
def test_weights_in_flight_stay_within_the_staleness_and_each_turn_says_its_version(tmp_path: Path) -> None:
    settings = ["rl.max_staleness=2", "rl.steps=6", "rl.save_steps=6", "rollout.mode=async", "rl.learning_rate=1e-3"]
    train.run(load_config(CONFIG, settings), tmp_path / "run")
    for step in range(6):
        turns = [
            turn["completion"]["policy_version"]
            for line in rows(tmp_path / "run", "trajectories.jsonl")
            if line["step"] == step
            for turn in line["steps"]
        ]
        ages = [step - version for version in turns]
        assert 0 <= min(ages) <= max(ages) <= 2
        row = rows(tmp_path / "run")[step]
        assert row["staleness/max"] == max(ages) and row["staleness/mean"] == pytest.approx(sum(ages) / len(ages))


@pytest.mark.slow
def test_killed_again_and_again_it_ends_with_the_same_bytes(tiny_yaml: Path, tmp_path: Path) -> None:
    given = [*KILLED, *REPEATABLE]
    assert harness(tiny_yaml, tmp_path / "never-stopped", "reference", settings=given) == 0
    *kills, end = harness(tiny_yaml, tmp_path / "killed", "kill", STEPS, 6, settings=given)
    assert end == [0, "end"] and [status for status, _ in kills] == [-9] * 8
    assert_same(tmp_path / "killed", tmp_path / "never-stopped")
