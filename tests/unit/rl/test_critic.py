"""The critic in the learner: values, their updates, what they leave alone, and an exact resume."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from accelerate import Accelerator

from skill_ttrl.config import RLConfig
from skill_ttrl.rl.batch import RolloutBatch, pack
from skill_ttrl.rl.learner import LocalLearner
from skill_ttrl.rl.policy import Policy
from tests.unit.rl.conftest import same, weights

MakePolicy = Callable[..., Policy]
MakeBatch = Callable[..., RolloutBatch]


def config(**changes: Any) -> RLConfig:
    defaults: dict[str, Any] = {
        "algorithm": "gae", "critic": {"learning_rate": 0.05}, "learning_rate": 1e-2, "warmup_steps": 0,
        "prompts_per_step": 3, "mini_batch_size": None, "kl_coef": 0.0, "lr_scheduler": "constant",
    }  # fmt: skip
    return RLConfig(**(defaults | changes))


def learner_of(
    policy: Policy, accelerator: Accelerator, settings: RLConfig | None = None, apart: bool = False
) -> LocalLearner:
    copied = policy.copy() if apart else None
    return LocalLearner(policy, settings or config(), accelerator, total_steps=9, critic_model=copied)


def with_returns(batch: RolloutBatch) -> RolloutBatch:
    """Returns that tell one prompt from another."""
    returns_F = (batch.prompt_index_N[batch.item_F].float() - 0.5) * batch.trained_F
    return replace(batch, returns_F=returns_F)


def steps(learner: LocalLearner, batch: RolloutBatch, numbers: Sequence[int]) -> list[dict[str, float]]:
    found = []
    for step in numbers:
        scored = with_returns(learner.score(batch, temperature=1.0, own=False, reference=False))
        found.append(learner.update(scored, step=step, seed=0, temperature=1.0))
    return found


def test_a_value_is_that_before_its_token(
    make_policy: MakePolicy, make_batch: MakeBatch, accelerator: Accelerator
) -> None:
    learner, batch = learner_of(make_policy(), accelerator), make_batch()
    assert learner._critic is not None
    learner.score(batch, temperature=1.0, own=False, reference=False)  # centres the head
    torch.nn.init.normal_(learner._critic.head.weight)
    ends_N = batch.starts_N + batch.lengths_N - 1
    tokens_F = batch.tokens_F.clone()
    tokens_F[ends_N] = (tokens_F[ends_N] + 1) % 39
    before = learner.score(batch, temperature=1.0, own=False, reference=False).values_F
    after = learner.score(replace(batch, tokens_F=tokens_F), temperature=1.0, own=False, reference=False).values_F
    assert before is not None and after is not None and torch.allclose(before, after, atol=1e-5)
    tokens_F[ends_N - 1] = (tokens_F[ends_N - 1] + 1) % 39
    other = learner.score(replace(batch, tokens_F=tokens_F), temperature=1.0, own=False, reference=False).values_F
    assert other is not None and bool((other != before)[ends_N].all())


@pytest.mark.slow
@pytest.mark.parametrize("apart", [False, True])
def test_the_critic_learns_to_predict_returns_and_leaves_the_policy_alone(
    apart: bool, make_policy: MakePolicy, make_batch: MakeBatch, accelerator: Accelerator
) -> None:
    policy, batch = make_policy(), make_batch(advantages=[0.0] * 12)
    # No advantages: the policy takes no step, so that whatever moves it would be the critic.
    learner, before = learner_of(policy, accelerator, apart=apart), weights(policy)
    found = steps(learner, batch, range(40))
    assert same(before, weights(policy))
    assert found[0]["critic/vf_explained_var"] == pytest.approx(0.0, abs=1e-4)
    assert found[-1]["critic/vf_explained_var"] > 0.8 and found[-1]["critic/vf_loss"] < found[0]["critic/vf_loss"] / 4
    assert all(each["updates"] == 0 and each["critic/updates"] == 1 for each in found)
    assert learner._critic is not None
    moved = not same(before, weights(learner._critic._decoder))
    assert moved == apart, "a decoder of its own learns, the policy's does not"


@pytest.mark.slow
@pytest.mark.parametrize("apart", [False, True])
def test_resume_gives_the_same_critic_bit_for_bit(
    apart: bool, make_policy: MakePolicy, make_batch: MakeBatch, accelerator: Accelerator, tmp_path: Any
) -> None:
    batch = make_batch()
    straight = make_policy()
    learner = learner_of(straight, accelerator, apart=apart)
    steps(learner, batch, range(2))
    torch.save({"learner": learner.state_dict(), "policy": straight.model.state_dict()}, tmp_path / "state.pt")
    expected = steps(learner, batch, range(2, 4))

    resumed = make_policy()
    again = learner_of(resumed, accelerator, apart=apart)
    state = torch.load(tmp_path / "state.pt")
    resumed.model.load_state_dict(state["policy"])
    again.load_state_dict(state["learner"])
    assert steps(again, batch, range(2, 4)) == expected
    assert learner._critic is not None and again._critic is not None
    assert torch.equal(learner._critic.head.weight, again._critic.head.weight)
    assert same(weights(learner._critic._decoder), weights(again._critic._decoder))


def test_returns_that_are_not_finite_leave_the_critic_as_it_was(
    make_policy: MakePolicy, make_batch: MakeBatch, accelerator: Accelerator
) -> None:
    learner, batch = learner_of(make_policy(), accelerator), make_batch(advantages=[0.0] * 12)
    scored = with_returns(learner.score(batch, temperature=1.0, own=False, reference=False))
    assert scored.returns_F is not None and learner._critic is not None
    poisoned = replace(scored, returns_F=scored.returns_F * torch.inf)
    metrics = learner.update(poisoned, step=0, seed=0, temperature=1.0)
    assert (metrics["critic/updates"], metrics["critic/skipped_updates"]) == (0, 1)
    assert not learner._critic.head.weight.any()
    (skipped,) = learner.skipped
    assert "returns_F at" in skipped
    steps(learner, batch, [1])
    assert learner.skipped == []


@pytest.mark.slow
def test_adapters_and_an_empty_batch(
    make_lora_policy: MakePolicy, make_batch: MakeBatch, accelerator: Accelerator
) -> None:
    policy, batch = make_lora_policy(), make_batch()
    learner = learner_of(policy, accelerator, apart=True)
    found = steps(learner, batch, range(10))
    assert found[-1]["critic/vf_loss"] < found[0]["critic/vf_loss"]
    empty = learner.score(pack([]), temperature=1.0, own=False, reference=False)
    metrics = learner.update(replace(empty, returns_F=empty.values_F), step=10, seed=0, temperature=1.0)
    assert metrics["updates"] == 0 and not any(name.startswith("critic/") for name in metrics)
