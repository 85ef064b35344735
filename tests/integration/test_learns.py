"""It learns: the reward rises for real, and the README's run keeps its word."""

from __future__ import annotations

from pathlib import Path

import pytest

from skill_ttrl.commands import train
from skill_ttrl.config import load_config
from skill_ttrl.runs.reader import read_run

SMALL = [
    "data.train.limit=32", "data.eval.limit=32", "data.max_prompt_tokens=40", "model.builtin.hidden_size=96",
    "model.builtin.layers=2", "model.builtin.heads=4",
    "sft.data={path: 'synthetic:add', split: demos, options: {noise: 0.2}}",
    "sft.steps=250", "sft.batch_size=64", "sft.micro_batch_size=64", "sft.save_steps=250",
    "sft.noise_free_fraction=0.75", "rollout.n_votes_per_prompt=16", "rollout.n_samples_per_prompt=16",
    "rollout.max_new_tokens=16", "rl.steps=12", "rl.prompts_per_step=16", "rl.learning_rate=3e-4",
    "rl.mini_batch_size=8", "rl.mini_batch_by=samples", "rl.betas=[0.9, 0.95]", "rl.weight_decay=0",
    "rl.warmup_steps=2", "rl.lr_scheduler=constant", "rl.micro_batch_size=64", "rl.save_steps=12", "eval.samples=4",
    "eval.temperature=1.0", "eval.top_p=1.0", "run.save_trajectories=false",
]  # fmt: skip


@pytest.mark.slow
def test_a_short_run_without_labels_learns(tiny_yaml: Path, tmp_path: Path) -> None:
    """Half a minute of the main job: what is right among the samples, measured and never used, rises from 0.50 to 0.75.

    At 1e-3 and an update a prompt it depends on the seed: from 0.45 to 0.81 on seed 1, from 0.50 to 0.07 on seed 0.

    In every run of the tests the same is seen of a shorter one (`test_docs.py`, the example on one's own problems), and of
    one with skills (`test_skills_learn.py`).
    """
    summary = train.run(load_config(tiny_yaml, SMALL), tmp_path / "run")
    metrics = read_run(tmp_path / "run").metrics
    right = metrics[metrics["phase"] == "rl"]["ground_truth_ratio"].tolist()
    assert summary.reward == "majority" and len(right) == 12
    assert sum(right[-2:]) / 2 > sum(right[:2]) / 2 + 0.15
    assert summary.entropy_before is not None and summary.entropy_after is not None
    assert summary.entropy_after < summary.entropy_before


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_the_quickstart_keeps_its_word(tmp_path: Path, seed: int) -> None:
    summary = train.run(load_config("quickstart", [f"seed={seed}", "runtime.threads=1"]), tmp_path / "run")
    assert not summary.transductive and summary.samples == 32
    assert summary.accuracy_before is not None and summary.accuracy_after is not None
    assert summary.greedy_before is not None and summary.greedy_after is not None
    assert 0.45 <= summary.accuracy_before <= 0.75
    assert summary.accuracy_after >= 0.93
    assert summary.greedy_after >= summary.greedy_before - 0.02
    assert summary.warnings == []


@pytest.mark.slow
def test_the_random_control_does_not_rise(tmp_path: Path) -> None:
    config = load_config("quickstart", ["rl.reward=random", "runtime.threads=1"])
    summary = train.run(config, tmp_path / "run")
    assert summary.accuracy_before is not None and summary.accuracy_after is not None
    assert summary.accuracy_after < summary.accuracy_before + 0.05
