"""Our algorithms' advantages against verl's, TRL's and two papers' authors' own values.

They go the way of a run: rollouts are packed, the algorithm is built by its name, and its advantages are spread over the batch.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from skill_ttrl.rl.algorithms import AdvantageEstimate, TrainingSamples, build_algorithm
from skill_ttrl.rl.pack import pack, with_advantages
from skill_ttrl.types import Group
from tests.golden.field_values import assert_close, cases, given, tensor
from tests.golden.sources_values import EPISODES
from tests.sampled import flat, one_step, padded, sampled_groups, trajectory

WIDTH = 5
GIGPO = cases("gigpo", "advantage")
PSR_NSR = cases("rlvr-decomposed", "advantage")


def advantages(settings: Any, samples: TrainingSamples) -> tuple[Tensor, Tensor]:
    """Advantages (N, 5) of the samples' tokens, and which of them are learnt from."""
    assert samples.batch is not None
    found = build_algorithm(settings).advantages(samples)
    estimate = found if isinstance(found, AdvantageEstimate) else AdvantageEstimate(found)
    batch = with_advantages(samples.batch, samples.groups, estimate.advantages)
    trained = batch.trained_F if estimate.trained_F is None else batch.trained_F & estimate.trained_F
    return padded(batch, batch.advantages_F, WIDTH), padded(batch, trained.float(), WIDTH)


@pytest.mark.parametrize("name", sorted(GIGPO))
def test_gigpo_is_its_authors(name: str) -> None:
    case = GIGPO[name]
    asked = case["settings"]
    members: dict[int, list[Any]] = {}
    for episode in EPISODES:
        steps = [
            one_step((True,), observation=state, reward=reward)
            for state, reward in zip(episode["states"], episode["rewards"], strict=True)
        ]
        outcome = sum(episode["rewards"])
        members.setdefault(episode["task"], []).append(trajectory(steps, task=f"t{episode['task']}", reward=outcome))
    groups = [Group(each[0].task, tuple(each)) for each in members.values()]
    settings = {
        "type": "gigpo",
        "mode": asked["mode"],
        "gamma": asked["gamma"],
        "step_weight": asked["step_advantage_w"],
        "epsilon": asked["epsilon"],
        "level": "step" if asked["group_by_agent_id"] else "episode",
    }
    found, _ = advantages(settings, TrainingSamples(groups, batch=pack(groups), env_rewards=True))
    assert_close(found[:, 0], case["values"]["advantages"], name)


HALVES = {
    "positive": ({"type": "psr"}, lambda correct: correct),
    "negative": ({"type": "nsr"}, lambda correct: 1 - correct),
    "weighted": ({"type": "w_reinforce", "positive_weight": 0.1}, torch.ones_like),
}
"""Our algorithm for each of the authors' forms, and which samples they leave in the batch."""


@pytest.mark.parametrize("name", sorted(PSR_NSR))
def test_psr_and_nsr_are_their_authors(name: str) -> None:
    case = PSR_NSR[name]
    settings, chosen = HALVES[case["settings"]["advantage"]]
    correct, mask = tensor("correctness"), tensor("response_mask")
    groups = sampled_groups(mask, correct, tensor("groups"))
    batch = pack(groups)
    batch = replace(batch, rewards_F=flat(batch, torch.tensor(case["values"]["rewards"]).double()))
    found, trained = advantages(settings, TrainingSamples(groups, batch=batch))
    # A deliberate difference: theirs begins the reward-to-go anew at a token that is not trained on, ours steps over it.
    compared = mask * chosen(correct)[:, None]
    compared[3, :2] = 0.0
    assert_close(found, case["values"]["advantages"], name, compared)
    assert_close(trained, mask * chosen(correct)[:, None], name)


def test_grpo_nsr_by_hand() -> None:
    # Rewards 1 0 0 0: mean 1/4, deviation 1/2, so A = 1.5 and -0.5; correct samples weigh 0.1, wrong ones 2.
    mask = torch.ones(4, 2)
    groups = sampled_groups(mask, torch.tensor([1.0, 0.0, 0.0, 0.0]))
    samples = TrainingSamples(groups, batch=pack(groups))
    weights = {"type": "grpo_nsr", "positive_weight": 0.1, "negative_weight": 2.0}
    scale = 0.5 / (0.5 + 1e-6)
    expected = torch.tensor([[0.15] * 2] + [[-1.0] * 2] * 3, dtype=torch.float64) * scale
    assert_close(advantages(weights, samples)[0][:, :2], expected, "std")
    mean_only = advantages(weights | {"norm_by_std": False}, samples)[0]
    assert_close(mean_only[:, :2], [[0.075] * 2] + [[-0.5] * 2] * 3, "mean only")
