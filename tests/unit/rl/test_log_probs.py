"""Log-probs in blocks of the vocabulary against the plain softmax, values and gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from skill_ttrl.rl import head as log_probs
from skill_ttrl.rl.head import HeadSettings, score_tokens

VOCABULARY, WIDTH, POSITIONS, CHOSEN = 40, 6, 11, 17
ALL = 10**9


class Inputs(NamedTuple):
    hidden: Tensor
    weight: Tensor
    bias: Tensor | None
    targets: Tensor
    rows: Tensor


@pytest.fixture
def inputs() -> Callable[..., Inputs]:
    def make(*, frozen: bool, bias: bool) -> Inputs:
        torch.manual_seed(3)
        hidden = torch.randn(POSITIONS, WIDTH, requires_grad=True)
        weight = torch.randn(VOCABULARY, WIDTH, requires_grad=not frozen)
        offsets = torch.randn(VOCABULARY, requires_grad=not frozen) if bias else None
        targets, rows = torch.randint(0, VOCABULARY, (CHOSEN,)), torch.randint(0, POSITIONS, (CHOSEN,))
        return Inputs(hidden, weight, offsets, targets, rows)

    return make


def plain(inputs: Inputs, settings: HeadSettings) -> tuple[Tensor, Tensor]:
    hidden, weight, bias, targets, rows = inputs
    logits = torch.nn.functional.linear(hidden, weight, bias) * settings.scale
    if settings.softcap is not None:
        logits = settings.softcap * torch.tanh(logits / settings.softcap)
    log_p = torch.log_softmax(logits / settings.temperature, dim=-1)
    return log_p[rows, targets], -(log_p.exp() * log_p).sum(-1)[rows]


@pytest.mark.parametrize("budget", [0, 160, ALL], ids=["nothing held", "some held", "all held"])
@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("entropy", [False, True])
@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_values_and_gradients_are_those_of_the_softmax(
    budget: int,
    softcap: float | None,
    entropy: bool,
    frozen: bool,
    bias: bool,
    inputs: Callable[..., Inputs],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(log_probs, "MIN_BLOCK_WIDTH", 7)
    monkeypatch.setattr(log_probs, "CPU_BLOCK", 50)
    settings = HeadSettings(1.3, softcap, 0.7, entropy, budget)
    given = inputs(frozen=frozen, bias=bias)
    learnt = [part for part in given[:3] if part is not None and part.requires_grad]
    pull, entropy_pull = torch.randn(CHOSEN), torch.randn(CHOSEN)

    found, found_entropy = score_tokens(*given, settings)
    expected, expected_entropy = plain(given, settings)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    loss, plain_loss = (found * pull).sum(), (expected * pull).sum()
    assert (found_entropy is not None) == entropy
    if found_entropy is not None:
        torch.testing.assert_close(found_entropy, expected_entropy, atol=1e-5, rtol=1e-5)
        loss = loss + (found_entropy * entropy_pull).sum()
        plain_loss = plain_loss + (expected_entropy * entropy_pull).sum()
    gradients = torch.autograd.grad(loss, learnt, retain_graph=True)
    for gradient, wanted in zip(gradients, torch.autograd.grad(plain_loss, learnt), strict=True):
        torch.testing.assert_close(gradient, wanted, atol=2e-5, rtol=1e-4)
    again = torch.autograd.grad(loss, learnt)
    assert all(torch.equal(first, second) for first, second in zip(gradients, again, strict=True))


@pytest.mark.parametrize("frozen", [False, True])
def test_bf16_autocast_computes_the_softmax_in_float32(frozen: bool, inputs: Callable[..., Inputs]) -> None:
    given = inputs(frozen=frozen, bias=False)
    hidden, weight, _, targets, rows = given
    learnt = [hidden] if frozen else [hidden, weight]
    with torch.autocast("cpu", torch.bfloat16):
        found, _ = score_tokens(*given, HeadSettings(budget=ALL))
        logits = torch.nn.functional.linear(hidden, weight)
    assert found.dtype == torch.float32 and logits.dtype == torch.bfloat16
    expected = torch.log_softmax(logits.float(), dim=-1)[rows, targets]
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    for gradient, wanted in zip(
        torch.autograd.grad(found.sum(), learnt), torch.autograd.grad(expected.sum(), learnt), strict=True
    ):
        assert gradient.dtype == torch.float32
        assert float((gradient - wanted).norm() / wanted.norm()) < 0.01


@pytest.mark.parametrize(("rows", "width"), [(1, 2**26), (8_192, 8_192), (8_191, 8_320), (10**9, 128)])
def test_a_block_on_a_gpu_is_aligned(rows: int, width: int) -> None:
    """The products of a bf16 head whose rows do not begin at a multiple of 16 bytes take five times as long."""
    assert log_probs.block_width(rows, "cuda") == width and width % 128 == 0
