"""Gradient norms by part of the model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from accelerate import Accelerator

from skill_ttrl.config import RLConfig
from skill_ttrl.rl.batch import RolloutBatch
from skill_ttrl.rl.learner import LocalLearner
from skill_ttrl.rl.optim import model_parts
from skill_ttrl.rl.policy import Policy


def test_every_trainable_parameter_is_in_one_part(make_model: Callable[..., Any]) -> None:
    for tied, names in (
        (True, {"embeddings", "attention", "mlp", "norms"}),
        (False, {"embeddings", "attention", "mlp", "norms", "head"}),
    ):
        model = make_model(tie_word_embeddings=tied)
        parts = model_parts(model)
        assert set(parts) == names
        assert {id(each) for part in parts.values() for each in part} == {id(each) for each in model.parameters()}
        assert sum(map(len, parts.values())) == len(list(model.parameters()))
        assert [tuple(each.shape) for each in parts["norms"]] == [(16,)] * 5 and len(parts["attention"]) == 2 * (4 + 3)


def test_the_norms_of_the_parts_make_up_the_whole(
    make_policy: Callable[..., Policy], make_batch: Callable[..., RolloutBatch], accelerator: Accelerator
) -> None:
    settings = RLConfig(prompts_per_step=3, mini_batch_size=None, kl_coef=0.0, warmup_steps=0, grad_clip=0.05)
    policy = make_policy()
    learner = LocalLearner(policy, settings, accelerator, total_steps=1)
    taken: dict[str, float] = {}
    inner = learner._optimizer._optimizers[0]
    inner.register_step_pre_hook(
        lambda optimizer, args, kwargs: taken.update(
            {name: float(each.grad.norm()) for name, each in policy.model.named_parameters() if each.grad is not None}
        )
    )
    metrics = learner.update(make_batch(), step=0, seed=0, temperature=1.0)
    parts = {name.partition("/")[2]: value for name, value in metrics.items() if name.startswith("grad_norm/")}
    assert set(parts) == {"embeddings", "attention", "mlp", "norms"}
    assert sum(value**2 for value in parts.values()) ** 0.5 == pytest.approx(metrics["grad_norm"], rel=1e-5)
    clipped = 0.05 / metrics["grad_norm"]
    assert clipped < 1, "the gradient is clipped, and its norms are those before"
    of_mlp = sum(value**2 for name, value in taken.items() if ".mlp." in name) ** 0.5
    assert of_mlp == pytest.approx(parts["mlp"] * clipped, rel=1e-4)
    assert torch.tensor(list(taken.values())).norm() == pytest.approx(0.05, rel=1e-4)
