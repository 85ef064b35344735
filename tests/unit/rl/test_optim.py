from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from torch import nn

from skill_ttrl.config import RLConfig
from skill_ttrl.errors import ModelError
from skill_ttrl.rl.batch import RolloutBatch
from skill_ttrl.rl.learner import LocalLearner
from skill_ttrl.rl.optim import Muon, build_optimizer, model_parts
from skill_ttrl.rl.policy import Policy


@pytest.mark.parametrize("shape", [(12, 12), (24, 8), (8, 24)])
def test_muon_takes_the_steps_of_torchs_own(shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    start = torch.randn(shape)
    ours, theirs = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    left = Muon([ours], lr=0.02, weight_decay=0.1)
    right = torch.optim.Muon([theirs], lr=0.02, momentum=0.95, weight_decay=0.1)
    for _ in range(3):
        ours.grad = theirs.grad = torch.randn(shape)
        left.step()
        right.step()  # type: ignore[no-untyped-call]
    moved = (theirs - start).norm()
    assert moved > 0.1
    assert (ours - theirs).norm() < 0.02 * moved  # torch iterates in bf16


def test_muon_takes_hidden_matrices_only(make_model: Callable[..., Any]) -> None:
    model = make_model(tie_word_embeddings=False)
    optimizer = build_optimizer(model, learning_rate=1e-3, muon_learning_rate=0.02, weight_decay=0.1)
    muon, adamw = optimizer._optimizers
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    hidden = [names[id(parameter)] for parameter in muon.param_groups[0]["params"]]
    assert len(hidden) == 2 * 7 and all("_proj.weight" in name for name in hidden)
    decayed, plain = adamw.param_groups
    assert {names[id(parameter)] for parameter in decayed["params"]} == {"model.embed_tokens.weight", "lm_head.weight"}
    assert decayed["weight_decay"] == 0.1 and plain["weight_decay"] == 0.0
    assert len(optimizer.parameters) == len(list(model.parameters()))
    optimizer.set_lr(0.5)
    assert muon.param_groups[0]["lr"] == 0.01 and decayed["lr"] == 0.0005


def test_a_model_without_trainable_parameters_is_refused(make_model: Callable[..., Any]) -> None:
    with pytest.raises(ModelError, match="no trainable parameters"):
        build_optimizer(make_model().requires_grad_(False), learning_rate=1.0)


# Gradient norms by part of the model.


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
