"""A run on episodes of several steps: what it learns from, and what it says of them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from skill_ttrl.commands.train import run
from skill_ttrl.config import load_config
from skill_ttrl.runs.reader import read_run
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
    "agent": {
        "template": "episode",
        "prompts": "tiny",
        "context_mode": "window",
        "max_turns": 3,
        "action_parser": "action",
    },
    "model": {"path": "builtin", "builtin": {"hidden_size": 32, "layers": 1, "heads": 2, "max_positions": 256}},
    "rollout": {"n_votes_per_prompt": 4, "n_samples_per_prompt": 4, "max_new_tokens": 6, "rollout_timeout_s": 600},
    "rl": {
        "reward": "env",
        "steps": 1,
        "prompts_per_step": 4,
        "mini_batch_size": None,
        "invalid_action_penalty_coef": 0.1,
    },
    "eval": {"samples": 1, "extra_temperatures": [], "greedy": False},
    "runtime": {"device": "cpu", "threads": 1},
}


def test_a_run_says_how_its_episodes_went(tmp_path: Path) -> None:
    run(load_config(CONFIG), tmp_path / "run")
    found = read_run(tmp_path / "run")
    row = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[0])
    steps = [step for steps in found.trajectories["steps"][:16] for step in steps]
    assert {
        "success",
        "success/left",
        "success/right",
        "episode_steps",
        "timeout_fraction",
        "prompt_truncated/turns",
    } <= row.keys()
    assert row["timeout_fraction"] == 0 and 1 <= row["episode_steps"] <= 3 and row["sequences"] == len(steps) > 16
    assert row["invalid_actions"] == pytest.approx(
        sum(step["action_status"] == "invalid" for step in steps) / len(steps)
    )
    assert set(found.trajectories["reward"]) <= {0.0, 1.0}, "the penalty is no part of a try's reward"
    assert not {"majority_ratio", "answer_entropy", "abstained"} & row.keys(), (
        "nothing was answered, so nothing was voted on"
    )


GROWING: dict[str, Any] = {
    **CONFIG,
    "agent": {"template": "plain", "context_mode": "episode", "max_turns": 3, "structured_actions": True},
    "rollout": {**CONFIG["rollout"], "n_votes_per_prompt": 8, "n_samples_per_prompt": 8},
    "rl": {
        **CONFIG["rl"],
        "steps": 3,
        "learning_rate": 3e-3,
        "lr_scheduler": "constant",
        "warmup_steps": 0,
        "kl_coef": 0.0,
        "invalid_action_penalty_coef": 0.0,
    },
}


def test_whole_episodes_of_possible_actions_are_scored_as_they_were_sampled(tmp_path: Path) -> None:
    run(load_config(GROWING), tmp_path / "run")
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    for row in rows:
        assert row["sequences"] == 32 < 32 * row["episode_steps"], "one item an episode"
        # One update a step: the learner scores what was sampled as the sampler did.
        assert row["ratio_mean"] == pytest.approx(1, abs=1e-5) and row["ratio_max"] == pytest.approx(1, abs=2e-4)
    assert len(rows) == 3 and all(row["updates"] == 1 and row["grad_norm"] > 0 for row in rows)
    taken = {step["action"] for steps in read_run(tmp_path / "run").trajectories["steps"] for step in steps}
    assert taken <= {"left", "right", "wait"}


SHOP: dict[str, Any] = {
    **CONFIG,
    "name": "shop",
    "env": {"id": "webshop", "kwargs": {"data": "generated", "max_steps": 4}, "train_tasks": 8, "eval_tasks": 2},
    "agent": {
        **CONFIG["agent"],
        "max_turns": 4,
        "history_length": 1,
        "max_observation_tokens": 1,
        "actions": "numbered",
    },
    "data": {"max_prompt_tokens": 500},
    "model": {
        "path": "builtin",
        "builtin": {"hidden_size": 32, "layers": 1, "heads": 2, "max_positions": 600, "merges": 100},
    },
    "rl": {**CONFIG["rl"], "steps": 2},
}


@pytest.mark.parametrize(("algorithm", "env"), [("gigpo", "webshop"), ("graphgpo", "alfworld")])
def test_steps_are_compared_with_those_from_the_same_state(tmp_path: Path, algorithm: str, env: str) -> None:
    changes: dict[str, Any] = {"rl": {**SHOP["rl"], "algorithm": algorithm}}
    if env == "alfworld":
        pytest.importorskip("alfworld", reason="generated games need its floor plans")
        kwargs = {"data": "generated", "max_steps": 4, "task_types": ["look_at_obj_in_light"]}
        changes["env"] = {"id": env, "kwargs": kwargs, "eval_split": "valid_seen", "train_tasks": 4, "eval_tasks": 1}
    run(load_config({**SHOP, **changes}), tmp_path / "run")
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    step_rows = [row for row in rows if "step_group_size" in row]
    # All four rollouts of a group start in one state.
    assert len(step_rows) == 2 and all(row["step_group_size"] > 1 and row["singleton_states"] < 1 for row in step_rows)
    found = read_run(tmp_path / "run").trajectories
    starts = found["start_state"].groupby([found["step"], found["task"].map(lambda task: task["id"])]).nunique()
    assert set(starts) == {1} and "" not in found["start_state"].tolist()
    assert all(step["info"]["state"] for steps in found["steps"] for step in steps)
