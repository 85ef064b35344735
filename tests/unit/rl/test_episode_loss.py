"""What an episode of many steps weighs in the loss: a sequence is one step's answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from accelerate import Accelerator

from skill_ttrl.config import RLConfig
from skill_ttrl.rl.batch import RolloutBatch, pack, with_advantages
from skill_ttrl.rl.learner import LocalLearner
from skill_ttrl.rl.policy import Policy
from skill_ttrl.types import Group
from tests.sampled import per_item

HORIZON = 20


@pytest.fixture
def uneven(make_groups: Callable[..., list[Group]], make_policy: Callable[..., Policy]) -> RolloutBatch:
    """One group: an episode of 1 step that won, one of 4 that lost; sampled by the policy that learns."""
    (group,) = make_groups(prompts=1, tries=2, turns=4)
    short, long = group.trajectories
    groups = [replace(group, trajectories=(replace(short, steps=short.steps[:1]), long))]
    batch = with_advantages(pack(groups), groups, [0.75, -0.5])
    (micro,) = batch.micro_batches(torch.arange(len(batch)), len(batch), 39)
    with torch.no_grad():
        scored = make_policy().token_logprobs(micro)[0]
    old = torch.zeros_like(batch.old_log_probs_F)
    for row, item in enumerate(torch.argsort(batch.lengths_N, stable=True).tolist()):
        start, length = int(batch.starts_N[item] + batch.prompt_lengths_N[item]), int(batch.response_lengths_N[item])
        old[start : start + length] = scored[row, :length]
    return replace(batch, old_log_probs_F=old)


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"])
@pytest.mark.parametrize("size", [1, 5])
def test_every_step_is_a_sequence_of_its_own(
    mode: str, size: int, uneven: RolloutBatch, make_policy: Callable[..., Policy], accelerator: Accelerator
) -> None:
    settings = RLConfig.model_validate(
        {"loss_aggregation": mode, "micro_batch_size": size, "kl_coef": 0.0, "prompts_per_step": 1}
    )
    learner = LocalLearner(make_policy(), settings, accelerator, total_steps=1, max_response_tokens=HORIZON)
    lengths = uneven.response_lengths_N.tolist()
    assert len(lengths) == 5 and len(set(lengths)) > 1
    # The ratio is 1 everywhere, so the loss of a token is minus its advantage.
    sums = [-advantage * length for advantage, length in zip(per_item(uneven), lengths, strict=True)]
    expected = {
        "token-mean": sum(sums) / sum(lengths),
        "seq-mean-token-mean": (-0.75 + 4 * 0.5) / 5,
        "seq-mean-token-sum": sum(sums) / 5,
        "seq-mean-token-sum-norm": sum(sums) / 5 / HORIZON,
    }
    found = learner.update(uneven, step=0, seed=0, temperature=1.0)
    assert found["policy_loss"] == pytest.approx(expected[mode], abs=1e-5) and found["sequences"] == 5
