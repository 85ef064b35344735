"""The clipped value loss and the explained variance, worked out by hand."""

from __future__ import annotations

import pytest
import torch

from skill_ttrl.rl.critic import clipped_value_loss, compute_value_loss, explained_variance

VALUES = torch.tensor([[0.0, 1.0, 2.0], [0.2, 0.5, 9.0]])
OLD = torch.tensor([[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
RETURNS = torch.tensor([[1.0, 1.0, 0.0], [0.0, 0.5, 0.0]])
MASK = torch.tensor([[1.0, 1.0, 1.0], [1.0, 1.0, 0.0]])


def test_the_loss_is_the_larger_of_the_plain_and_the_clipped_one() -> None:
    loss, decided = clipped_value_loss(VALUES, RETURNS, OLD, 0.5)
    # Clipped values: 0 .5 .5 | .2 .5 .5. Squares plain 1 0 4 | .04 0 81, clipped 1 .25 .25 | .04 0 .25.
    assert loss.flatten().tolist() == pytest.approx([0.5, 0.125, 2.0, 0.02, 0.0, 40.5])
    assert decided.tolist() == [[False, True, False], [False, False, False]]
    plain, nowhere = clipped_value_loss(VALUES, RETURNS, OLD, None)
    assert plain.flatten().tolist() == pytest.approx([0.5, 0.0, 2.0, 0.02, 0.0, 40.5]) and not nowhere.any()


def test_a_value_beyond_the_clip_has_no_gradient_towards_its_return() -> None:
    values = torch.tensor([[1.0]], requires_grad=True)
    loss, _ = clipped_value_loss(values, torch.tensor([[1.5]]), torch.tensor([[0.0]]), 0.5)
    assert float(loss.detach()) == 0.5  # (.5 - 1.5)^2 / 2
    loss.sum().backward()  # type: ignore[no-untyped-call]
    assert values.grad is not None and float(values.grad) == 0.0


def test_the_batch_loss_is_aggregated_over_the_mask() -> None:
    loss, share = compute_value_loss(VALUES, RETURNS, OLD, MASK, 0.5)
    assert float(loss) == pytest.approx((0.5 + 0.125 + 2.0 + 0.02) / 5) and float(share) == pytest.approx(0.2)
    by_row, _ = compute_value_loss(VALUES, RETURNS, OLD, MASK, 0.5, "seq-mean-token-mean")
    assert float(by_row) == pytest.approx((2.625 / 3 + 0.02 / 2) / 2)


def test_explained_variance_is_1_for_the_returns_and_0_for_a_constant() -> None:
    returns = torch.tensor([0.0, 1.0, 4.0])
    assert explained_variance(returns, returns) == 1.0
    assert explained_variance(torch.ones(3), returns) == pytest.approx(0.0, abs=1e-5)
    assert explained_variance(-returns, returns) == pytest.approx(-3.0, abs=1e-4)
    assert explained_variance(torch.zeros(1), torch.zeros(1)) == 0.0
