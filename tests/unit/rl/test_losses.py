"""What holds for every policy loss, whatever the batch. A new loss is held to it as soon as it is registered."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from skill_ttrl.errors import ConfigError
from skill_ttrl.metrics import find
from skill_ttrl.rl.losses import LOSSES, AggregationMode, Denominators, LossInputs, PolicyLoss, aggregate, build_loss

MODES: tuple[AggregationMode, ...] = get_args(AggregationMode)
EXAMPLES = settings(max_examples=6)


@st.composite
def batches(draw: st.DrawFn) -> LossInputs:
    """Up to five sequences of up to six tokens: ragged, with holes, and some with no trained token at all."""
    rows, width = draw(st.integers(1, 5)), draw(st.integers(1, 6))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    mask = (torch.rand(rows, width, generator=generator) < draw(st.sampled_from([0.3, 0.8, 1.0]))).double()
    mask[draw(st.integers(0, rows - 1))] *= draw(st.sampled_from([0.0, 1.0]))

    def normal(scale: float) -> Tensor:
        return torch.randn(rows, width, generator=generator, dtype=torch.float64) * scale * mask

    old = -normal(1.0).abs()
    moved = old + normal(draw(st.sampled_from([0.05, 0.5, 2.0])))
    advantages = normal(1.0)
    if draw(st.booleans()):  # one value a sequence, as outcome estimators give
        advantages = advantages[:, :1] * mask
    return LossInputs(moved, old, advantages, mask)


def built(name: str) -> PolicyLoss:
    """A registered loss with its defaults."""
    return build_loss({"type": name})


def evaluated(loss: PolicyLoss, inputs: LossInputs) -> tuple[Tensor, Tensor]:
    """Loss of each token under the mask, and the gradient of its sum with respect to the log-probs."""
    log_probs = inputs.log_probs.clone().requires_grad_()
    token_loss, info = loss(replace(inputs, log_probs=log_probs))
    assert token_loss.shape == inputs.log_probs.shape
    assert all(map(find, info))
    for name, value in info.items():
        assert value.isfinite() and not value.requires_grad, name
    masked = token_loss * inputs.response_mask
    # Without a graph nothing depends on the log-probs: the gradient is 0.
    (gradient,) = torch.autograd.grad(masked.sum() + 0.0 * log_probs.sum(), log_probs)
    return masked.detach(), gradient


def rows_of(inputs: LossInputs, rows: Tensor) -> LossInputs:
    """Some of the sequences."""
    names = ("log_probs", "old_log_probs", "advantages", "response_mask")
    return replace(inputs, **{name: getattr(inputs, name)[rows] for name in names})


def assert_same(found: tuple[Tensor, Tensor], expected: tuple[Tensor, Tensor]) -> None:
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", list(LOSSES))
@given(inputs=batches(), seed=st.integers(0, 99))
@EXAMPLES
def test_sequences_have_no_order(name: str, inputs: LossInputs, seed: int) -> None:
    order = torch.randperm(len(inputs.log_probs), generator=torch.Generator().manual_seed(seed))
    loss, gradient = evaluated(built(name), inputs)
    assert_same(evaluated(built(name), rows_of(inputs, order)), (loss[order], gradient[order]))


@pytest.mark.parametrize("name", list(LOSSES))
@given(inputs=batches(), width=st.integers(1, 4), seed=st.integers(0, 99))
@EXAMPLES
def test_padding_changes_nothing(name: str, inputs: LossInputs, width: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    fields = {}
    for field in ("log_probs", "old_log_probs", "advantages"):
        values = getattr(inputs, field)
        # What stands where nothing is trained must not matter, in the padding and in the holes.
        noise = torch.randn(len(values), values.shape[1] + width, generator=generator, dtype=torch.float64)
        noise[:, : values.shape[1]] *= 1 - inputs.response_mask
        noise[:, : values.shape[1]] += values * inputs.response_mask
        fields[field] = noise
    mask = torch.nn.functional.pad(inputs.response_mask, (0, width))
    loss, gradient = evaluated(built(name), LossInputs(response_mask=mask, **fields))
    before = evaluated(built(name), inputs)
    assert_same((loss[:, :-width], gradient[:, :-width]), before)
    assert not loss[:, -width:].any() and not gradient[:, -width:].any()
    assert not gradient[mask == 0].any()


@pytest.mark.parametrize("name", list(LOSSES))
@given(inputs=batches(), at=st.integers(0, 5), mode=st.sampled_from(MODES))
@EXAMPLES
def test_micro_batches_add_up(name: str, inputs: LossInputs, at: int, mode: AggregationMode) -> None:
    loss, mask = built(name), inputs.response_mask
    whole = Denominators.of(mask)

    def total(part: LossInputs) -> tuple[Tensor, Tensor]:
        log_probs = part.log_probs.clone().requires_grad_()
        token_loss, _ = loss(replace(part, log_probs=log_probs))
        value = aggregate(token_loss, part.response_mask, mode, whole) + 0.0 * log_probs.sum()
        return value.detach(), torch.autograd.grad(value, log_probs)[0]

    cut = min(at, len(mask))
    first, second = (total(rows_of(inputs, rows)) for rows in torch.arange(len(mask)).tensor_split([cut]))
    assert_same((first[0] + second[0], torch.cat([first[1], second[1]])), total(inputs))


@pytest.mark.parametrize("name", list(LOSSES))
@given(inputs=batches(), factor=st.floats(0.01, 100.0))
@EXAMPLES
def test_the_loss_is_linear_in_the_size_of_the_advantages(name: str, inputs: LossInputs, factor: float) -> None:
    loss, gradient = evaluated(built(name), inputs)
    larger = replace(inputs, advantages=inputs.advantages * factor)
    assert_same(evaluated(built(name), larger), (loss * factor, gradient * factor))


@pytest.mark.parametrize("name", list(LOSSES))
@given(inputs=batches())
@EXAMPLES
def test_the_first_step_is_the_policy_gradient(name: str, inputs: LossInputs) -> None:
    """Where the policy has not moved, whatever is clipped, weighted or gated, the gradient is -A."""
    still = replace(inputs, log_probs=inputs.old_log_probs)
    _, gradient = evaluated(built(name), still)
    torch.testing.assert_close(gradient, -inputs.advantages, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", list(LOSSES))
@given(inputs=batches())
@EXAMPLES
def test_what_has_no_advantage_is_left_out_without_a_trace_where_a_loss_says_so(name: str, inputs: LossInputs) -> None:
    silent = replace(inputs, advantages=torch.zeros_like(inputs.advantages))
    loss, gradient = evaluated(built(name), silent)
    promised = getattr(LOSSES.get(name), "zero_without_advantage", False)
    assert not promised or (not loss.any() and not gradient.any())


@pytest.mark.parametrize("name", list(LOSSES))
@pytest.mark.parametrize("distance", [-1e4, -50.0, 50.0, 1e4])
@pytest.mark.parametrize("advantage", [-1.0, 0.0, 1.0])
def test_a_policy_that_went_far_away_gives_no_infinite_gradient(name: str, distance: float, advantage: float) -> None:
    old = torch.full((2, 3), -1.0, dtype=torch.float64)
    mask = torch.tensor([[1.0, 1.0, 1.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    inputs = LossInputs(old + distance, old, torch.full_like(old, advantage), mask)
    loss, gradient = evaluated(built(name), inputs)
    assert loss.isfinite().all() and gradient.isfinite().all()


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
        (
            {"type": "cispo", "clip_ratio_hgih": 1.0},
            r"Did you mean 'clip_ratio_high'\? Known: clip_ratio, clip_ratio_high\.$",
        ),
    ],
)
def test_options_without_sense_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        build_loss(settings)
