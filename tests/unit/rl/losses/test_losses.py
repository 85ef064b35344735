"""Policy losses worked out by hand: values, gradients and shares."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from torch import Tensor

from skill_ttrl.config import RLConfig
from skill_ttrl.errors import ConfigError
from skill_ttrl.rl.batch import RolloutBatch
from skill_ttrl.rl.learner import LocalLearner
from skill_ttrl.rl.losses import LossInputs, SelectingLoss, build_loss
from skill_ttrl.rl.losses.masked import token_covariance
from skill_ttrl.rl.policy import Policy


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


def test_delta_bounds_the_ratio_of_bad_tokens_and_the_smaller_bound_counts() -> None:
    for bounds in (
        {"dual_clip": None, "delta": 1.5},
        {"dual_clip": 3.0, "delta": 1.5},
        {"dual_clip": 1.5, "delta": 4.0},
    ):
        loss, gradient, _ = computed({"type": "ppo_clip"} | bounds, [[1.4, 2.0, 2.0]], [[-1.0, -1.0, 1.0]])
        near(loss, [[1.4, 1.5, -1.2]])
        near(gradient, [[1.4, 0.0, 0.0]])


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


def test_the_covariance_finds_what_is_likely_and_good() -> None:
    log_probs, advantages = torch.tensor([-0.1, -0.1, -3.0, -3.0]), torch.tensor([2.0, -2.0, 2.0, -2.0])
    assert token_covariance(log_probs, advantages).tolist() == pytest.approx([2.9, -2.9, -2.9, 2.9])
    generator = torch.Generator().manual_seed(0)
    top, few = build_loss({"type": "kl_cov", "fraction": 0.25}), build_loss({"type": "clip_cov", "fraction": 0.25})
    assert isinstance(top, SelectingLoss) and isinstance(few, SelectingLoss)
    nearer = log_probs + torch.tensor([0.1, 0.0, 0.0, 0.0])
    assert top.select(nearer, advantages, generator).tolist() == [True, False, False, False]
    drawn = few.select(log_probs, advantages, generator)
    assert int(drawn.sum()) == 1 and bool(drawn[0] | drawn[3])


@pytest.mark.parametrize("kind", ["clip_cov", "kl_cov"])
def test_selected_tokens_do_not_depend_on_the_micro_batch(
    kind: str, make_policy: Callable[..., Policy], make_batch: Callable[..., RolloutBatch], accelerator: Accelerator
) -> None:
    found = []
    for size in (100, 2):
        loss = {"type": kind, "fraction": 0.2} | ({"low": 0.0, "high": 9.0} if kind == "clip_cov" else {})
        settings = RLConfig(
            loss=loss, micro_batch_size=size, mini_batch_size=None, prompts_per_step=3, kl_coef=0.0, warmup_steps=0
        )
        learner = LocalLearner(make_policy(), settings, accelerator, total_steps=1)
        found.append(learner.update(make_batch(), step=0, seed=0, temperature=1.0))
    for metrics in found:
        del metrics["computed_tokens"], metrics["operations"]  # packing shares more in a larger one
    assert found[0] == pytest.approx(found[1], abs=1e-4) and found[0]["selected_fraction"] == pytest.approx(
        0.2, abs=0.05
    )


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"type": "ppo_clip", "delta": 1.1}, r"delta \(1.1\) must be above the upper clip"),
        ({"type": "ppo_clip", "clip_ratio": 5}, r"clip_ratio: must be less than 1 \(found 5\)\.$"),
        ({"type": "gspo", "clip_ratio": 1}, "clip_ratio: must be less than 1"),
        ({"type": "ppo_clip", "dual_clip": 1}, r"dual_clip: must be greater than 1 \(found 1\)\.$"),
        ({"type": "dapo"}, "'dapo': that is the name of an algorithm. Set rl.algorithm=dapo; rl.loss is one of cispo,"),
        ({"type": "clip_cov", "low": 5.0, "high": 1.0}, "must be below high"),
        (
            {"type": "cispo", "clip_ratio_hgih": 1.0},
            r"Did you mean 'clip_ratio_high'\? Known: clip_ratio, clip_ratio_high\.$",
        ),
        ({"type": "dppo", "divergence": "js"}, "unknown value 'js'"),
    ],
)
def test_options_without_sense_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        build_loss(settings)
