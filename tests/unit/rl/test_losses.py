"""Policy losses worked out by hand: values, gradients and shares."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from skill_ttrl.errors import ConfigError
from skill_ttrl.rl.losses import LossInputs, build_loss


def computed(settings: dict[str, Any], ratios: Any, advantages: Any, old: float = -1.0) -> tuple[Tensor, Tensor, Any]:
    """Loss, gradient and info of tokens that have moved by these ratios."""
    given = torch.tensor(advantages, dtype=torch.float64)
    before = torch.full_like(given, old)
    after = (before + torch.tensor(ratios, dtype=torch.float64).log()).requires_grad_()
    loss, info = build_loss(settings)(LossInputs(after, before, given, torch.ones_like(given)))
    (gradient,) = torch.autograd.grad(loss.sum(), after)
    return loss.detach(), gradient, {name: float(value) for name, value in info.items()}


def near(found: Tensor, expected: Any) -> None:
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=1e-6, atol=1e-6)


def test_gspos_gradient_is_that_of_the_sequences_objective() -> None:
    before = torch.tensor([[-1.0, -2.0, -0.5]], dtype=torch.float64)
    moved = torch.tensor([[0.1, -0.3, 0.05]], dtype=torch.float64)
    gradients: list[Tensor] = []
    for token_level in (True, False):
        after = (before + moved).requires_grad_()
        if token_level:
            inputs = LossInputs(after, before, torch.full_like(before, 0.7), torch.ones_like(before))
            loss = build_loss({"type": "gspo", "clip_ratio": 0.5})(inputs)[0].mean()
        else:
            loss = -0.7 * (after - before).mean().exp()
        gradients += torch.autograd.grad(loss, after)
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"type": "ppo_clip", "clip_ratio": 5}, r"clip_ratio: must be less than 1 \(found 5\)\.$"),
        ({"type": "gspo", "clip_ratio": 1}, "clip_ratio: must be less than 1"),
        ({"type": "ppo_clip", "dual_clip": 1}, r"dual_clip: must be greater than 1 \(found 1\)\.$"),
        ({"type": "dapo"}, "'dapo': that is the name of an algorithm. Set rl.algorithm=dapo; rl.loss is one of cispo,"),
        (
            {"type": "cispo", "clip_ratio_hgih": 1.0},
            r"Did you mean 'clip_ratio_high'\? Known: clip_ratio, clip_ratio_high\.$",
        ),
    ],
)
def test_options_without_sense_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        build_loss(settings)
