from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from skill_ttrl.errors import ModelError
from skill_ttrl.rl.optim import Muon, build_optimizer


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
