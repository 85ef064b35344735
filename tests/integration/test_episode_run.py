"""A run on episodes of several steps: what it learns from, and what it says of them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from skill_ttrl.config import load_config
from skill_ttrl.errors import ConfigError
from skill_ttrl.runs.reader import read_run
from skill_ttrl.stages.train import run
from skill_ttrl.types import Task
from tests.doors import TASKS, Doors

HALLS = f"{__name__}:Halls-v0"


class Halls(Doors):
    """Doors, of which those of the test are others."""

    def tasks(self, split: str | None = None) -> list[Task]:
        doors = {"train": 0, "test": TASKS["train"]}
        return [
            replace(task, env_id=HALLS, options={"door": task.options["door"] + doors[task.split]})
            for task in super().tasks(split)
        ]


gymnasium.register("Halls-v0", entry_point=f"{__name__}:Halls")

CONFIG: dict[str, Any] = {
    "name": "doors",
    "phases": ["rl"],
    "env": {"id": HALLS, "train_split": "train", "eval_split": "test"},
    "data": {"max_prompt_tokens": 240},
    "agent": {"template": "episode", "prompts": "tiny", "memory": "window", "max_turns": 3, "projection": "action"},
    "model": {"path": "embedded", "embedded": {"hidden_size": 32, "layers": 1, "heads": 2, "max_positions": 256}},
    "rollout": {"n_votes_per_prompt": 4, "n_samples_per_prompt": 4, "max_new_tokens": 6, "episode_seconds": 600},
    "rl": {"reward": "env", "steps": 1, "prompts_per_step": 4, "mini_batch_prompts": None, "invalid_penalty": 0.1},
    "eval": {"samples": 1, "extra_temperatures": [], "greedy": False},
    "runtime": {"device": "cpu", "threads": 1},
}


def test_a_run_says_how_its_episodes_went(tmp_path: Path) -> None:
    run(load_config(CONFIG), tmp_path / "run")
    found = read_run(tmp_path / "run")
    row = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[0])
    steps = [step for steps in found.trajectories["steps"][:16] for step in steps]
    assert {"success", "success/left", "success/right", "episode_steps", "timeouts", "left_out/turns"} <= row.keys()
    assert row["timeouts"] == 0 and 1 <= row["episode_steps"] <= 3 and row["sequences"] == len(steps) > 16
    assert row["invalid_actions"] == pytest.approx(sum(step["verdict"] == "invalid" for step in steps) / len(steps))
    assert set(found.trajectories["reward"]) <= {0.0, 1.0}, "the penalty is no part of a try's reward"
    assert not {"majority_ratio", "answer_entropy", "abstained"} & row.keys(), (
        "nothing was answered, so nothing was voted on"
    )


def test_a_penalty_that_nothing_can_draw_is_refused_before_a_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no action is ever found invalid"):
        run(load_config(CONFIG, ["agent.projection=none"]), tmp_path / "run")
    assert not (tmp_path / "run").exists()
