"""A Hugging Face reward model by path takes the vote's place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForSequenceClassification

from skill_ttrl.config import load_config
from skill_ttrl.errors import ModelError
from skill_ttrl.llm.models.builtin import build_tokenizer
from skill_ttrl.llm.reward_model import RewardModel
from skill_ttrl.runs.folder import config_differences
from skill_ttrl.train.tasks import pin_revisions
from skill_ttrl.types import Group, Step, Task, Trajectory


def save_model(folder: Path, outputs: int) -> Path:
    tokenizer: Any = build_tokenizer(["Compute 1+2."] * 10)
    make_config: Any = Qwen2Config  # its signature leaves out what every config takes
    config = make_config(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=128,
        num_labels=outputs,
        pad_token_id=tokenizer.pad_token_id,
    )
    torch.manual_seed(0)
    make_model: Any = Qwen2ForSequenceClassification
    make_model(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def group(*texts: str) -> Group:
    task = Task("t", "env")
    steps = [Step("Compute 1+2.", text, 0.0, True, False) for text in texts]
    return Group(task, tuple(Trajectory(task, (step,), None, "terminated") for step in steps))


def test_each_try_gets_the_models_score_whatever_the_batch(tmp_path: Path) -> None:
    path = str(save_model(tmp_path / "rm", outputs=1))
    texts = ["<answer>3</answer>", "<answer>4</answer> and a longer one", "no idea"]
    together = RewardModel(path, device="cpu")(group(*texts))
    one_by_one = [RewardModel(path, device="cpu", batch_size=1)(group(text))[0] for text in texts]

    assert together == pytest.approx(one_by_one, abs=1e-5)
    assert len(set(together)) == 3


def test_a_classifier_with_several_outputs_is_refused(tmp_path: Path) -> None:
    path = str(save_model(tmp_path / "classifier", outputs=3))
    with pytest.raises(ModelError, match="3 outputs"):
        RewardModel(path, device="cpu")


def test_a_run_pins_its_reward_model_and_refuses_another(tmp_path: Path) -> None:
    path = save_model(tmp_path / "rm", outputs=1)
    config = load_config({"model": {"path": "builtin"}, "rl": {"reward": f"model:{path}"}})
    pinned = pin_revisions(config)
    assert any(version.startswith("blocks:") for version in pinned.data.revisions.values())
    assert config_differences(pinned, config) == []
    assert pin_revisions(config, pinned) == pinned
    weights = path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x7f")
    with pytest.raises(ModelError, match="has changed since this run started"):
        pin_revisions(config, pinned)
