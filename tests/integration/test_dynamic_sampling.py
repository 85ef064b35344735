"""DAPO's sampling in a whole run: groups that all earn the same are replaced, every rollout is recorded, a resumed run does the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from skill_ttrl.commands import train
from skill_ttrl.config import load_config
from tests.integration.test_kill_and_resume import assert_same, harness

# Two samples with random rewards: half of the groups earn the same.
SETTINGS = [
    "phases=[rl]", "rl.reward=random", "rl.algorithm=dapo", "rl.steps=4", "rl.lr_scheduler=constant", "rl.warmup_steps=1",
    "rl.prompts_per_step=2", "rl.mini_batch_size=null", "rollout.n_votes_per_prompt=2", "rollout.n_samples_per_prompt=2",
    "rl.save_steps=1",
]  # fmt: skip


def rows(folder: Path, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def test_a_step_samples_until_its_groups_differ_and_records_all_of_them(tiny_yaml: Path, tmp_path: Path) -> None:
    summary = train.run(load_config(tiny_yaml, SETTINGS), tmp_path / "run")
    steps, votes, rollouts = (
        rows(tmp_path / "run", name) for name in ("metrics.jsonl", "votes.jsonl", "trajectories.jsonl")
    )
    assert len(steps) == 4 and any(step["dynamic_sampling/rounds"] > 1 for step in steps)
    for number, step in enumerate(steps):
        groups = int(step["dynamic_sampling/groups"])
        mine = [line for line in rollouts if line["step"] == number]
        assert len([line for line in votes if line["step"] == number]) == groups and len(mine) == 2 * groups
        by_task: dict[str, set[float]] = {}
        for line in mine:
            by_task.setdefault(line["task"]["id"], set()).add(line["rewards"]["random"])
        assert len(by_task) == groups, "no task twice in a step"
        differing = [task for task, earned in by_task.items() if len(earned) == 2]
        assert step["dynamic_sampling/dropped"] == groups - len(differing)
        trained = {line["task"]["id"] for line in mine if line.get("advantages") and any(line["advantages"])}
        assert trained == set(differing[:2]) and step["dynamic_sampling/surplus"] == len(differing) - len(trained)
        assert 0 <= step["overlong_fraction"] <= 1 and step["rewards/overlong/mean"] <= 0
        too_few = len(differing) < 2
        assert any("too few groups" in text for text in summary.warnings) or not too_few


@pytest.mark.slow
@pytest.mark.parametrize("reward", ["random", "majority"])
def test_a_resumed_run_draws_the_same_rounds(tiny_yaml: Path, tmp_path: Path, reward: str) -> None:
    given = [*SETTINGS, f"rl.reward={reward}"]
    train.run(load_config(tiny_yaml, [*given, "rl.steps=2"]), tmp_path / "short")
    train.run(load_config(tiny_yaml, given), tmp_path / "short", resume="auto")
    train.run(load_config(tiny_yaml, given), tmp_path / "long")
    for name in ("metrics.jsonl", "trajectories.jsonl", "votes.jsonl"):
        assert (tmp_path / "short" / name).read_bytes() == (tmp_path / "long" / name).read_bytes(), name
    models = [tmp_path / name / "checkpoints" / "rl-000004" / "model.safetensors" for name in ("short", "long")]
    assert models[0].read_bytes() == models[1].read_bytes()


@pytest.mark.slow
def test_killed_again_and_again_it_draws_the_same_rounds(tiny_yaml: Path, tmp_path: Path) -> None:
    given = [*SETTINGS, "rl.steps=12", "rl.save_steps=2"]
    assert harness(tiny_yaml, tmp_path / "never-stopped", "reference", settings=given) == 0
    *kills, end = harness(tiny_yaml, tmp_path / "killed", "kill", 12, 4, settings=given)
    assert end == [0, "end"] and [status for status, _ in kills] == [-9] * 6
    kept = ("rl-000008", "rl-000010", "rl-000012")
    assert_same(tmp_path / "killed", tmp_path / "never-stopped", steps=12, kept=kept)
    states = [
        json.loads((tmp_path / "killed" / "checkpoints" / name / "state.json").read_text())["state"] for name in kept
    ]
    assert all(state["task_batches"] > int(name[-2:]) for state, name in zip(states, kept, strict=True))


def test_where_no_group_differs_the_run_continues_with_a_warning_(tiny_yaml: Path, tmp_path: Path) -> None:
    # No random model writes a boxed answer: all rollouts of the format control earn 0.
    given = [*SETTINGS, "rl.reward=format", "rl.steps=1"]
    summary = train.run(load_config(tiny_yaml, given), tmp_path / "run")
    (text,) = [text for text in summary.warnings if "too few groups" in text]
    assert "0 of the 2" in text and "6 of 6 tasks" in text
    (step,) = rows(tmp_path / "run")
    assert step["updates"] == 0 and step["dynamic_sampling/groups"] == 6 and step["dynamic_sampling/rounds"] == 3
