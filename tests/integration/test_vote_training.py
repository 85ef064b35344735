"""Strategies that draw in rounds or ask the base go on after a stop as if there had been none."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from skill_ttrl.commands import train
from skill_ttrl.config import load_config
from skill_ttrl.progress import SilentProgress
from skill_ttrl.signals import Interrupted

SETTINGS = [
    "phases=[rl]",
    "rl.steps=6",
    "rl.prompts_per_step=3",
    "rl.save_steps=2",
    "rl.learning_rate=0.003",
    "rollout.n_votes_per_prompt=8",
    "rollout.n_samples_per_prompt=4",
    "rollout.max_new_tokens=10",
    "rollout.temperature=0.25",  # at 1 hardly two samples of this policy agree
]


@pytest.fixture
def cold(answering: Path) -> str:
    return f"model.path={answering}"


def rows(run: Path, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / name).read_text().splitlines()]


class StopAfter(SilentProgress):
    """Asks the run to stop when so many steps of a phase are done."""

    def __init__(self, step: int, phase: str = "grpo") -> None:
        self.step, self.phase = step, phase

    def advance(self, phase: str, done: int, metrics: Mapping[str, float]) -> None:
        if phase == self.phase and done == self.step:
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.slow
def test_sequential_trains_and_resumes_to_the_same_bytes(cold: str, tiny_yaml: Path, tmp_path: Path) -> None:
    config = load_config(
        tiny_yaml, [*SETTINGS, cold, "vote.strategy=sequential", "vote.options={first: 2, error: 0.2}"]
    )
    train.run(config, tmp_path / "whole")
    with pytest.raises(Interrupted):
        train.run(config, tmp_path / "stopped", progress=StopAfter(3))
    train.run(config, tmp_path / "stopped", resume="auto")
    for file in ("metrics.jsonl", "votes.jsonl", "trajectories.jsonl", "checkpoints/rl-000006/model.safetensors"):
        assert (tmp_path / "whole" / file).read_bytes() == (tmp_path / "stopped" / file).read_bytes(), file
    figures, votes = rows(tmp_path / "whole"), rows(tmp_path / "whole", "votes.jsonl")
    assert len(figures) == 6 and len(votes) == 18
    assert all({"majority_ratio", "label_accuracy", "pass@8"} <= row.keys() for row in figures)
    assert sum(len(vote["matches"]) < 8 for vote in votes) >= 2
    drawn = sum(len(vote["matches"]) for vote in votes)
    assert sum(row["votes_saved"] for row in figures) / 6 == pytest.approx(1 - drawn / (18 * 8))


@pytest.mark.slow
def test_the_base_is_asked_once_and_kept_with_the_run(cold: str, tiny_yaml: Path, tmp_path: Path) -> None:
    config = load_config(tiny_yaml, [*SETTINGS, cold, "vote.strategy=anchored"])
    train.run(config, tmp_path / "run")
    states = [
        json.loads((tmp_path / "run" / "checkpoints" / f"rl-00000{step}" / "state.json").read_text())["state"]
        for step in (2, 6)
    ]
    given = states[0]["votes"]["base_answers"]
    assert given == states[1]["votes"]["base_answers"] and len(given) == 6
    assert {len(answers) for answers in given.values()} == {config.rollout.n_votes_per_prompt}
    with pytest.raises(Interrupted, match="Interrupted during the votes of the base"):
        train.run(config, tmp_path / "stopped", progress=StopAfter(3, "votes of the base"))
    train.run(config, tmp_path / "stopped", resume="auto")
    assert (tmp_path / "stopped" / "votes.jsonl").read_bytes() == (tmp_path / "run" / "votes.jsonl").read_bytes()
