"""Our algorithms' advantages against verl's, TRL's and two papers' authors' own values.

They go the way of a run: rollouts are packed, the algorithm is built by its name, and its advantages are spread over the batch.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from skill_ttrl.config import RLConfig
from skill_ttrl.rl.algorithms import ALGORITHMS, TrainingSamples
from skill_ttrl.rl.batch import pack
from skill_ttrl.rl.learner import UpdateRule
from skill_ttrl.types import Group
from tests.golden.field_values import assert_close, base, cases, given, tensor
from tests.golden.sources_values import EPISODES
from tests.sampled import flat, one_step, padded, sampled_groups, trajectory

WIDTH = 5
VERL_CASES = cases("verl", "advantage")
GIGPO = cases("gigpo", "advantage")
PSR_NSR = cases("rlvr-decomposed", "advantage")


def advantages(settings: Any, samples: TrainingSamples) -> tuple[Tensor, Tensor]:
    """Advantages (N, 5) of the samples' tokens, and which of them are learnt from, with what the algorithm brings."""
    assert samples.batch is not None
    brought = dict(ALGORITHMS.get(settings["type"]).defaults)
    rule = UpdateRule(RLConfig(algorithm=settings, **brought), sampler_is_learner=True)
    batch, _ = rule.estimate(samples, samples.batch)
    return padded(batch, batch.advantages_F, WIDTH), padded(batch, batch.trained_F.float(), WIDTH)


VERL: dict[str, dict[str, Any]] = {
    "grpo": {"type": "grpo"},
    "grpo/mean_only": {"type": "grpo", "scale_rewards": "none"},
    "grpo_vectorized": {"type": "grpo"}, "rloo": {"type": "rloo"}, "rloo_vectorized": {"type": "rloo"},
    "reinforce_plus_plus_baseline": {"type": "reinforce_plus_plus_baseline"},
    "reinforce_plus_plus/scores/gamma=1.0": {"type": "reinforce_plus_plus"},
    "reinforce_plus_plus/with_kl/gamma=1.0": {"type": "reinforce_plus_plus"},
    "reinforce_plus_plus/scores/gamma=0.9": {"type": "reinforce_plus_plus", "gamma": 0.9},
    "reinforce_plus_plus/with_kl/gamma=0.9": {"type": "reinforce_plus_plus", "gamma": 0.9},
}  # fmt: skip
"""Our options for each of verl's estimators."""

ALONE = {"rloo_vectorized": 0.0}
"""What verl gives a group of one where that is not what we, and verl's other form of the same estimator, do: the reward itself."""


@pytest.mark.parametrize("name", sorted(name for name in VERL_CASES if not base(name, ["gae"])))
def test_advantages_are_verls(name: str) -> None:
    case = VERL_CASES[name]
    named = given(case)
    mask, groups = named["response_mask"], tensor("groups")
    members = sampled_groups(mask, tensor("rewards"), groups)
    batch = pack(members)
    batch = replace(batch, rewards_F=flat(batch, named["token_level_rewards"]))
    found, _ = advantages(VERL[str(base(name, VERL))], TrainingSamples(members, batch=batch))
    expected = torch.tensor(case["values"]["advantages"])
    if name in ALONE:
        assert (expected[8] == ALONE[name]).all() and (found[8] == 3.0).all()
        mask[8] = 0.0
    assert_close(found, expected, name, mask)


TRL: dict[str, dict[str, Any]] = {
    "grpo": {"type": "grpo"},
    "grpo/none": {"type": "grpo", "scale_rewards": "none"},
    "grpo/sum": {"type": "grpo"},
    "rloo": {"type": "rloo"},
}
"""Our options for each of TRL's, which adds 1e-4 to deviations."""


@pytest.mark.parametrize("name", sorted(cases("trl", "advantage")))
def test_advantages_are_trls(name: str) -> None:
    case = cases("trl", "advantage")[name]
    weights = case["settings"].get("reward_weights", [1.0])
    rewards = sum(weight * values for weight, values in zip(weights, given(case).values(), strict=True))
    groups = torch.arange(3).repeat_interleave(3)
    members = sampled_groups(torch.ones(9, 3), torch.as_tensor(rewards), groups)
    settings = TRL[name] | ({"epsilon": 1e-4} if "grpo" in name else {})
    found, _ = advantages(settings, TrainingSamples(members, batch=pack(members)))
    assert_close(found[:, 0], case["values"]["advantages"], name)


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
        "type": "gigpo", "mode": asked["mode"], "gamma": asked["gamma"], "step_weight": asked["step_advantage_w"],
        "level": "step" if asked["group_by_agent_id"] else "episode",
    }  # fmt: skip
    found, _ = advantages(settings, TrainingSamples(groups, batch=pack(groups), env_rewards=True))
    assert_close(found[:, 0], case["values"]["advantages"], name)


HALVES: dict[str, dict[str, Any]] = {
    "positive": {"type": "psr"},
    "negative": {"type": "nsr"},
    "weighted": {"type": "w_reinforce", "positive_weight": 0.1},
}
"""Our algorithm for each of the authors' forms."""


@pytest.mark.parametrize("name", sorted(PSR_NSR))
def test_psr_and_nsr_are_their_authors(name: str) -> None:
    case = PSR_NSR[name]
    form = case["settings"]["advantage"]
    correct, mask = tensor("correctness"), tensor("response_mask")
    # They leave the other half out of the batch.
    learnt = mask * {"positive": correct, "negative": 1 - correct, "weighted": torch.ones(9)}[form][:, None]
    groups = sampled_groups(mask, correct, tensor("groups"))
    batch = pack(groups)
    batch = replace(batch, rewards_F=flat(batch, torch.tensor(case["values"]["rewards"]).double()))
    found, trained = advantages(HALVES[form], TrainingSamples(groups, batch=batch))
    # A deliberate difference: theirs begins the reward-to-go anew at a token that is not trained on, ours steps over it.
    compared = learnt.clone()
    compared[3, :2] = 0.0
    assert_close(found, case["values"]["advantages"], name, compared)
    assert_close(trained, learnt, name)


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
