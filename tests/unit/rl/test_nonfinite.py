"""Updates that are left out because loss or gradient is not finite."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from accelerate import Accelerator

from skill_ttrl.config import RLConfig
from skill_ttrl.rl.batch import RolloutBatch
from skill_ttrl.rl.learner import LocalLearner
from skill_ttrl.rl.optim import dump_skipped
from skill_ttrl.rl.policy import Policy

SETTINGS: dict[str, Any] = {"prompts_per_step": 3, "mini_batch_size": 1, "kl_coef": 0.0, "warmup_steps": 0}


def with_nan(batch: RolloutBatch, name: str, item: int) -> RolloutBatch:
    values = getattr(batch, name).clone()
    values[batch.starts_N[item] + batch.prompt_lengths_N[item]] = float("nan")
    return replace(batch, **{name: values})


@pytest.mark.parametrize("name", ["advantages_F", "old_log_probs_F", "weights_F"])
def test_one_bad_value_costs_its_mini_batch_alone_and_is_named(
    name: str, make_policy: Callable[..., Policy], make_batch: Callable[..., RolloutBatch], accelerator: Accelerator
) -> None:
    batch = make_batch()
    batch = with_nan(replace(batch, weights_F=torch.ones(len(batch.tokens_F))), name, item=5)
    policy = make_policy()
    learner = LocalLearner(policy, RLConfig(**SETTINGS), accelerator, total_steps=1)
    metrics = learner.update(batch, step=0, seed=0, temperature=1.0)
    assert (metrics["updates"], metrics["skipped_updates"]) == (2, 1)
    assert all(each.isfinite().all() for each in policy.model.parameters())
    (skipped,) = learner.skipped
    assert set(batch.prompt_index_N[skipped.items_M].tolist()) == {1} and not skipped.overflow
    assert skipped.reason() == f"the loss is nan; not finite before it: {name} at 1 tokens"
    learner.update(make_batch(), step=0, seed=0, temperature=1.0)
    assert not learner.skipped, "they are those of the latest update"


def test_a_dump_holds_the_whole_batch_and_loads_without_code(
    make_policy: Callable[..., Policy], make_batch: Callable[..., RolloutBatch], accelerator: Accelerator
) -> None:
    batch = with_nan(make_batch(), "advantages_F", item=0)
    learner = LocalLearner(make_policy(), RLConfig(**SETTINGS), accelerator, total_steps=1)
    learner.update(batch, step=0, seed=0, temperature=1.0)
    found = torch.load(io.BytesIO(dump_skipped(learner.skipped)), weights_only=True)
    again = RolloutBatch(**found["batch"])
    for field in fields(batch):
        before, after = getattr(batch, field.name), getattr(again, field.name)
        assert (before is None and after is None) or torch.equal(torch.nan_to_num(before), torch.nan_to_num(after))
    (update,) = found["updates"]
    assert update["nonfinite"] == {"advantages_F": 1} and 0 in update["items"].tolist()
