"""Numbers that other libraries publish in their own tests, as a table by hand.

Sources: NeMo-RL (github.com/NVIDIA-NeMo/RL, tests/unit/algorithms/test_loss_functions.py, test_grpo.py), SkyRL
(github.com/NovaSky-AI/SkyRL, tests/train/algorithms/). They give four digits; where a number follows from a short sum, the sum
stands here.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from skill_ttrl.rl.algorithms import compute_gae_advantage, group_advantages, whiten_advantages
from skill_ttrl.rl.algorithms.grpo import RLOO, LevelOptions
from skill_ttrl.rl.algorithms.tokens import returns_to_go
from skill_ttrl.rl.batch import pack
from skill_ttrl.rl.learner import corrected
from skill_ttrl.rl.losses import AggregationMode, LossInputs, aggregate, build_loss, kl_estimate
from tests.sampled import flat, padded, sampled_groups

RATIOS = [0.5, 1.0, 1.5]
ADVANTAGES = [1.0, -1.0, 2.0]
OLD = [-1.0, -1.0, -1.0]


def token_losses(settings: Any, ratios: Any, advantages: Any, old: Any) -> Tensor:
    """Loss of each token where the policy has moved by these ratios."""
    before = torch.tensor(old, dtype=torch.float64)
    after = before + torch.tensor(ratios, dtype=torch.float64).log()
    mask = torch.ones_like(before)
    given = torch.tensor(advantages, dtype=torch.float64)
    return build_loss(settings)(LossInputs(after, before, given, mask))[0]


@pytest.mark.parametrize(
    ("settings", "ratios", "advantages", "old", "expected"),
    [
        # NeMo-RL test_clipped_pg_loss_ppo_clipping
        ({"type": "ppo_clip", "dual_clip": None}, [RATIOS], [ADVANTAGES], [OLD], [[-0.5, 1.0, -2.4]]),
        # NeMo-RL test_clipped_pg_loss_dual_clip, SkyRL test_policy_loss_dual_clip
        (
            {"type": "ppo_clip", "dual_clip": 3.0},
            [[0.5, 1.0, 10.0]],
            [[1.0, -1.0, -4.0]],
            [[-1.0, -1.0, -3.0]],
            [[-0.5, 1.0, 12.0]],
        ),
        # NeMo-RL test_clipped_pg_loss_gspo: s = 0.75^(1/3) = 0.9086
        (
            {"type": "gspo", "clip_ratio": 0.2, "clip_ratio_high": 0.2},
            [RATIOS],
            [ADVANTAGES],
            [OLD],
            [[-0.9086, 0.9086, -1.8171]],
        ),
        # NeMo-RL test_clipped_pg_loss_gspo_batch_size_2: s = 0.9086, 2.4697
        (
            {"type": "gspo", "clip_ratio": 0.2, "clip_ratio_high": 0.2},
            [RATIOS, [ratio * math.e for ratio in RATIOS]],
            [ADVANTAGES, ADVANTAGES],
            [OLD, [-2.0, -2.0, -2.0]],
            [[-0.9086, 0.9086, -1.8171], [-1.2, 2.4697, -2.4]],
        ),
        # SkyRL test_policy_loss_cispo
        (
            {"type": "cispo", "clip_ratio": 0.2, "clip_ratio_high": 0.2},
            [[0.5, 1.0, 10.0]],
            [[1.0, -1.0, -4.0]],
            [[-1.0, -1.0, -3.0]],
            [[1.35452, -1.0, -3.347568]],
        ),
    ],
)
def test_losses(settings: Any, ratios: Any, advantages: Any, old: Any, expected: Any) -> None:
    found = token_losses(settings, ratios, advantages, old)
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("settings", "mode", "expected"),
    [
        ({"type": "ppo_clip"}, "token-mean", -0.6333),
        ({"type": "gspo", "clip_ratio": 0.2, "clip_ratio_high": 0.2}, "seq-mean-token-mean", -0.6057),
    ],
)
def test_means(settings: Any, mode: AggregationMode, expected: float) -> None:
    found = token_losses(settings, [RATIOS], [ADVANTAGES], [OLD])
    assert float(aggregate(found, torch.ones(1, 3), mode)) == pytest.approx(expected, abs=5e-5)


def test_the_mean_of_two_gspo_sequences() -> None:
    ratios = [RATIOS, [ratio * math.e for ratio in RATIOS]]
    settings = {"type": "gspo", "clip_ratio": 0.2, "clip_ratio_high": 0.2}
    found = token_losses(settings, ratios, [ADVANTAGES] * 2, [OLD, [-2.0] * 3])
    assert float(aggregate(found, torch.ones(2, 3), "seq-mean-token-mean")) == pytest.approx(-0.4912, abs=5e-5)


def test_kl_of_nemo() -> None:
    reference = torch.tensor([0.0, -15.0, -30.0], dtype=torch.float64)
    found = kl_estimate(torch.full_like(reference, -1.0), reference)
    assert found.tolist() == pytest.approx([math.e - 2, 10.0, 10.0], abs=1e-6)  # as theirs with output_clamp_value=10


def test_truncated_importance_sampling_of_nemo() -> None:
    # test_clipped_pg_loss_on_policy_truncated_importance_sampling, at most 0.8: by tokens [0.6065, 0.8, 0.8].
    weights = corrected_weights(0.8, [-0.5, -1.5, -0.8])
    assert weights == pytest.approx([0.6065, 0.8, 0.8], abs=1e-4)
    tokens = token_losses({"type": "ppo_clip"}, RATIOS, ADVANTAGES, OLD)
    assert float((tokens * torch.tensor(weights)).mean()) == pytest.approx(-0.4744, abs=5e-5)


def test_bounds_of_nemos_importance_weights() -> None:
    # test_clipped_pg_loss_tis_min_bound_defaults_to_zero: ratios 0.1, 1, 3
    sampler = [-1.0 - math.log(ratio) for ratio in (0.1, 1.0, 3.0)]
    assert corrected_weights(2.0, sampler) == pytest.approx([0.1, 1.0, 2.0], abs=1e-6)


def corrected_weights(largest: float, sampler: list[float]) -> list[float]:
    """Weights of three tokens whose log-probs of the learner's own are -1."""
    batch = pack(sampled_groups(torch.ones(1, 3)))
    sampled, own = torch.tensor([sampler]), torch.full((1, 3), -1.0)
    batch = replace(batch, sampler_log_probs_F=flat(batch, sampled), old_log_probs_F=flat(batch, own))
    found, _ = corrected(batch, largest)
    assert found.weights_F is not None
    return [float(value) for value in padded(found, found.weights_F)[0]]


GROUPS = [0, 0, 1, 1]
REWARDS = [6.0, 3.0, 9.0, 12.0]


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        # SkyRL test_compute_rloo_outcome_advantage. Its group of one, reward 1, has 0; ours and verl's keeps its reward.
        (RLOO(LevelOptions()).estimate([*REWARDS, 1.0], [*GROUPS, 2]), [3.0, -3.0, -3.0, 3.0, 1.0]),
        # SkyRL test_compute_grpo_outcome_advantage, without the deviation
        (group_advantages(REWARDS, GROUPS, scale="none"), [1.5, -1.5, -1.5, 1.5]),
        # NeMo-RL's GDPO: correct [1, 1], integer [1, -1], format [1, 0], each over its own deviation
        (group_advantages([1.0, 1.0], [0, 0]), [0.0, 0.0]),
        (group_advantages([1.0, -1.0], [0, 0]), [0.7071, -0.7071]),
        (group_advantages([1.0, 0.0], [0, 0]), [0.7071, -0.7071]),
    ],
)
def test_advantages(found: Tensor, expected: list[float]) -> None:
    assert found.tolist() == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(
    ("gamma", "mask", "returns"), [(0.5, [1.0, 1.0, 1.0], [2.75, 3.5, 3.0]), (1.0, [1.0, 1.0, 0.0], [3.0, 2.0, 0.0])]
)
def test_returns_of_reinforce_plus_plus_of_skyrl(gamma: float, mask: list[float], returns: list[float]) -> None:
    # Of a token that is not trained on theirs has a return too, 3; nothing is learnt there.
    found = returns_to_go(torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([mask]), gamma)
    assert found.tolist()[0] == pytest.approx(returns, abs=1e-6)


@pytest.mark.parametrize(
    ("gamma", "lam", "returns"),
    [(1.0, 1.0, [6.0, 5.0, 3.0]), (0.5, 1.0, [2.75, 3.5, 3.0]), (1.0, 0.5, [3.625, 4.25, 3.0])],
)
def test_gae_of_skyrl(gamma: float, lam: float, returns: list[float]) -> None:
    rewards, values = torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[0.5, 1.0, 1.5]])
    _, found = compute_gae_advantage(rewards, values, torch.ones(1, 3), gamma, lam)
    assert found.tolist()[0] == pytest.approx(returns, abs=1e-6)


def test_gae_of_skyrl_with_a_hole() -> None:
    # Theirs is whitened over tokens 0 and 2 and has a value in the hole too, 0.1768; ours is 0 there: nothing is trained in it.
    rewards, values = torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[0.5, 1.0, 1.5]])
    mask = torch.tensor([[1.0, 0.0, 1.0]])
    advantages, _ = compute_gae_advantage(rewards, values, mask)
    assert whiten_advantages(advantages, mask).tolist()[0] == pytest.approx([0.5**0.5, 0.0, -(0.5**0.5)], abs=1e-4)
