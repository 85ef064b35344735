"""A signal during an evaluation between two steps: the steps before it are saved, and the resumed run has the same bytes."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from skill_ttrl.config import load_config
from skill_ttrl.progress import SilentProgress
from skill_ttrl.signals import Interrupted
from skill_ttrl.stages import train

SETTINGS = ["phases=[rl]", "rl.steps=3", "rl.save_steps=3", "rl.eval_steps=2", "rl.reward=random"]


class StopIn(SilentProgress):
    """Sends the process a signal when a phase begins."""

    def __init__(self, phase: str) -> None:
        self.phase = phase

    def start(self, phase: str, total: int, unit: str, done: int = 0) -> None:
        if phase == self.phase:
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.slow
def test_steps_before_a_stopped_evaluation_are_saved(tiny_yaml: Path, tmp_path: Path) -> None:
    config = load_config(tiny_yaml, SETTINGS)
    train.run(config, tmp_path / "whole")
    with pytest.raises(Interrupted, match="after rl step 2; saved in"):
        train.run(config, tmp_path / "stopped", progress=StopIn("evaluate step 2"))
    assert [path.name for path in (tmp_path / "stopped" / "checkpoints").iterdir()] == ["rl-000002"]
    train.run(config, tmp_path / "stopped", resume="auto")
    for name in ("metrics.jsonl", "votes.jsonl", "trajectories.jsonl", "evaluations.jsonl"):
        assert (tmp_path / "stopped" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name
