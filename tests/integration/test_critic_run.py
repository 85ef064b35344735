"""PPO with a critic from a config: a run that is stopped and goes on ends with the critic of one that was not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from skill_ttrl.commands import train
from skill_ttrl.config import load_config
from skill_ttrl.errors import ModelError
from skill_ttrl.runs.checkpoint import load_tensors

PPO = ["rl.algorithm=ppo", "rl.reward=random", "rl.lr_scheduler=constant", "rl.warmup_steps=0", "rl.kl_coef=0.01"]


def state_of(run: Path, step: int) -> dict[str, Any]:
    """The learner's tensors after so many steps."""
    found: dict[str, Any] = load_tensors(run / "checkpoints" / f"rl-{step:06d}")["learner"]
    return found


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(one == other)


@pytest.mark.slow
@pytest.mark.parametrize("critic", ["{}", "{model: policy, learning_rate: 1.0e-3}"])
def test_a_resumed_run_has_the_same_critic_bit_for_bit(critic: str, tiny_yaml: Path, tmp_path: Path) -> None:
    settings = [*PPO, f"rl.critic={critic}"]
    train.run(load_config(tiny_yaml, [*settings, "rl.steps=3"]), tmp_path / "straight")
    train.run(load_config(tiny_yaml, [*settings, "rl.steps=1"]), tmp_path / "stopped")
    train.run(load_config(tiny_yaml, [*settings, "rl.steps=3"]), tmp_path / "stopped", resume="auto")
    straight, resumed = state_of(tmp_path / "straight", 3), state_of(tmp_path / "stopped", 3)
    assert straight["critic"]["head"]["weight"].any() and equal(straight["critic"], resumed["critic"])
    assert bool(straight["critic"]["decoder"]) == ("model" in critic)
    assert equal(straight["optimizer"], resumed["optimizer"])


@pytest.mark.slow
def test_a_critic_model_is_loaded_and_must_read_the_same_tokens(tiny_yaml: Path, tmp_path: Path) -> None:
    train.run(load_config(tiny_yaml, ["phases=[sft]", "sft.steps=1"]), tmp_path / "base")
    (model,) = (tmp_path / "base" / "checkpoints").glob("sft-*")
    start = ["phases=[rl]", f"model.path={model}", *PPO, "rl.steps=1"]
    train.run(load_config(tiny_yaml, [*start, f"rl.critic.model={model}"]), tmp_path / "run")
    lines = (tmp_path / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    (row,) = map(json.loads, lines)
    assert row["critic/updates"] == 1 and row["critic/lr"] == 1e-5
    other = ["data.train.path=synthetic:operators", "sft.data.path=synthetic:operators", "sft.steps=1", "phases=[sft]"]
    train.run(load_config(tiny_yaml, [*other, "data.eval.path=synthetic:operators"]), tmp_path / "other")
    (stranger,) = (tmp_path / "other" / "checkpoints").glob("sft-*")
    with pytest.raises(ModelError, match="a different vocabulary from the policy"):
        train.run(load_config(tiny_yaml, [*start, f"rl.critic.model={stranger}"]), tmp_path / "refused")
