from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from skill_ttrl.config import RLConfig, RuntimeConfig, SFTConfig
from skill_ttrl.rl.batch import EncodedDemonstration, RolloutBatch, pack
from skill_ttrl.rl.device import make_accelerator
from skill_ttrl.rl.learner import LocalLearner
from skill_ttrl.rl.losses import LOSSES, PPOClip
from skill_ttrl.rl.micro_batch import lay_out
from skill_ttrl.rl.policy import Policy
from skill_ttrl.rl.sft_learner import SFTLearner, rate_fraction
from tests.unit.rl.conftest import same, weights

MODES = ["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]


def config(**changes: Any) -> RLConfig:
    defaults: dict[str, Any] = {
        "learning_rate": 1e-2, "warmup_steps": 0, "prompts_per_step": 3, "mini_batch_size": None,
        "micro_batch_size": 4, "kl_coef": 0.0, "weight_decay": 0.0, "lr_scheduler": "constant", "grad_clip": 1e9,
    }  # fmt: skip
    return RLConfig(**(defaults | changes))


def gradient_of_update(
    policy: Policy, learner: LocalLearner, batch: RolloutBatch
) -> tuple[list[Tensor], dict[str, float]]:
    """The gradient as it is when the optimizer takes its step."""
    taken: list[Tensor] = []
    inner = learner._optimizer._optimizers[0]
    handle = inner.register_step_pre_hook(
        lambda optimizer, args, kwargs: taken.extend(
            p.grad.clone() for p in learner._optimizer.parameters if p.grad is not None
        )
    )
    batch = learner.score(batch, temperature=1.0, own=False, reference=learner.config.kl_coef > 0)
    metrics = learner.update(batch, step=0, seed=0, temperature=1.0)
    handle.remove()
    return taken, metrics


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(size=st.integers(1, 13), mode=st.sampled_from(MODES), extra=st.booleans())
def test_micro_batch_size_changes_neither_gradient_nor_figures(
    size: int,
    mode: str,
    extra: bool,
    make_policy: Callable[..., Policy],
    make_batch: Callable[..., RolloutBatch],
    accelerator: Accelerator,
) -> None:
    batch = make_batch()
    results = []
    for micro_batch_size in (100, size):
        settings_ = config(
            micro_batch_size=micro_batch_size,
            loss_aggregation=mode,
            entropy_coef=0.1 if extra else 0.0,
            kl_coef=0.5 if extra else 0.0,
        )
        policy = make_policy()
        learner = LocalLearner(policy, settings_, accelerator, total_steps=1)
        with torch.no_grad():  # away from the reference, so that the KL has a gradient
            policy.model.model.norm.weight.mul_(1.2)
        results.append(gradient_of_update(policy, learner, batch))
    (one, one_metrics), (many, many_metrics) = results
    for left, right in zip(one, many, strict=True):
        assert torch.allclose(left, right, atol=1e-5)
    for metrics in (one_metrics, many_metrics):  # these depend on which items are computed together
        assert metrics.pop("computed_tokens") > 0 and metrics.pop("operations") > 0
    assert many_metrics == pytest.approx(one_metrics, abs=1e-4)
    assert one_metrics["kl"] > 0 if extra else "kl" not in one_metrics  # not measured is not 0


def test_items_without_advantage_are_not_computed_but_count_in_the_mean(
    make_policy: Callable[..., Policy], make_batch: Callable[..., RolloutBatch], accelerator: Accelerator
) -> None:
    batch = make_batch(advantages=[0.0] * 4 + [1.0, -1.0, 0.0, 0.5] + [0.0] * 4)

    class AsPPO(PPOClip):  # the same loss, not known to vanish without advantage
        zero_without_advantage = False

    LOSSES._items["as ppo"] = AsPPO
    try:
        results = []
        for loss in ("ppo_clip", "as ppo"):
            policy = make_policy()
            rows: list[int] = []
            policy.model.lm_head.register_forward_hook(lambda m, a, output, rows=rows: rows.append(len(output)))
            learner = LocalLearner(policy, config(loss=loss), accelerator, total_steps=1)
            gradient, metrics = gradient_of_update(policy, learner, batch)
            results.append((gradient, metrics, sum(rows)))
    finally:
        del LOSSES._items["as ppo"]
    (alive, alive_metrics, alive_rows), (every, every_metrics, every_rows) = results
    assert alive_rows == int(batch.trained_tokens_N[torch.tensor([4, 5, 7])].sum())
    assert every_rows == int(batch.trained_tokens_N.sum())
    for left, right in zip(alive, every, strict=True):
        assert torch.allclose(left, right, atol=1e-6)
    assert alive_metrics["policy_loss"] == pytest.approx(every_metrics["policy_loss"], abs=1e-5)


def test_a_batch_without_any_advantage_and_an_empty_one_move_nothing(
    make_policy: Callable[..., Policy], make_batch: Callable[..., RolloutBatch], accelerator: Accelerator
) -> None:
    policy = make_policy()
    learner, before = LocalLearner(policy, config(), accelerator, total_steps=2), weights(policy)
    metrics = learner.update(make_batch(advantages=[0.0] * 12), step=0, seed=0, temperature=1.0)
    empty = learner.update(pack([]), step=1, seed=0, temperature=1.0)
    assert metrics["updates"] == empty["updates"] == 0 and same(before, weights(policy))
    assert (
        metrics.keys() - empty.keys() == {"entropy", "post_entropy", "learning_rate"} and empty.keys() < metrics.keys()
    )
    assert metrics["tokens"] > empty["tokens"] == 0
    assert all(math.isfinite(value) for value in (metrics | empty).values())


def test_mini_batches_are_whole_prompts_in_an_order_that_depends_on_the_step(
    make_policy: Callable[..., Policy], make_batch: Callable[..., RolloutBatch], accelerator: Accelerator
) -> None:
    batch = make_batch(prompts=7, tries=3)
    settings_ = config(mini_batch_size=2, ppo_epochs=2, prompts_per_step=7)
    learner = LocalLearner(make_policy(), settings_, accelerator, total_steps=1)
    orders = [
        [torch.unique(batch.prompt_index_N[part]).tolist() for part in learner._mini_batches(batch, s)] for s in (0, 1)
    ]
    assert orders[0] != orders[1]
    for order in orders:
        assert [len(prompts) for prompts in order] == [2, 2, 2, 1]
        assert sorted(prompt for prompts in order for prompt in prompts) == list(range(7))
    metrics = learner.update(batch, step=0, seed=0, temperature=1.0)
    assert metrics["updates"] == 8


def test_an_update_whose_gradient_is_not_finite_is_refused_and_counted(
    make_policy: Callable[..., Policy], make_batch: Callable[..., RolloutBatch], accelerator: Accelerator
) -> None:
    policy, batch = make_policy(), make_batch()
    learner, before = LocalLearner(policy, config(mini_batch_size=1), accelerator, total_steps=1), weights(policy)
    policy.model.model.norm.weight.register_hook(lambda gradient: gradient * math.inf)
    metrics = learner.update(batch, step=0, seed=0, temperature=1.0)
    assert (metrics["updates"], metrics["skipped_updates"]) == (0, 3)
    assert same(before, weights(policy))


@pytest.mark.parametrize("adapters", [False, True])
def test_resume_gives_the_same_weights_bit_for_bit(
    adapters: bool,
    make_policy: Callable[..., Policy],
    make_lora_policy: Callable[..., Policy],
    make_batch: Callable[..., RolloutBatch],
    accelerator: Accelerator,
    tmp_path: Any,
) -> None:
    settings_ = config(kl_coef=0.1, mini_batch_size=2, lr_scheduler="cosine", ppo_epochs=2)
    make = make_lora_policy if adapters else make_policy

    def run(learner: LocalLearner, steps: range) -> list[dict[str, float]]:
        batches = {step: make_batch(seed=step) for step in steps}
        return [
            learner.update(
                learner.score(batches[step], temperature=0.9, own=False, reference=True),
                step=step,
                seed=3,
                temperature=0.9,
            )
            for step in steps
        ]

    straight = make()
    learner = LocalLearner(straight, settings_, accelerator, total_steps=6)
    first = run(learner, range(2))
    straight.refresh_reference()  # as before RL after a cold start: adapters then keep one too
    first += run(learner, range(2, 3))
    torch.save({"weights": straight.model.state_dict(), "learner": learner.state_dict()}, tmp_path / "state.pt")
    rest = run(learner, range(3, 6))

    resumed = make()
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    resumed.model.load_state_dict(state["weights"])
    again = LocalLearner(resumed, settings_, accelerator, total_steps=6)
    again.load_state_dict(state["learner"])
    assert run(again, range(3, 6)) == rest
    assert same(weights(straight), weights(resumed))
    assert first[1]["kl"] > 0


def test_in_bf16_the_policy_is_not_computed_with_the_references_weights(
    make_policy: Callable[..., Policy], make_batch: Callable[..., RolloutBatch]
) -> None:
    accelerator = make_accelerator(RuntimeConfig(device="cpu", precision="bf16"))
    policy, batch = make_policy(), make_batch()
    learner = LocalLearner(policy, config(kl_coef=0.1, micro_batch_size=12), accelerator, total_steps=1)
    micro_batch = lay_out(batch, torch.argsort(batch.lengths_N, stable=True), policy.pad_id)
    with torch.no_grad(), accelerator.autocast():
        for parameter in policy.model.parameters():
            parameter.mul_(1.5)
        log_probs = policy.token_logprobs(micro_batch)[0]
    own = replace(batch, old_log_probs_F=_flat(batch, log_probs))
    own = learner.score(own, temperature=1.0, own=False, reference=True)
    metrics = learner.update(own, step=0, seed=0, temperature=1.0)
    assert metrics["ratio_max"] == pytest.approx(1, abs=1e-6) and metrics["approx_kl"] == pytest.approx(0, abs=1e-6)
    assert metrics["kl"] > 0.1 and metrics["grad_norm"] > 0.1


def _flat(batch: RolloutBatch, log_probs_N_R: Tensor) -> Tensor:
    """Log-probs of one micro-batch of all items, shortest first, in the batch's own order."""
    flat = torch.zeros_like(batch.old_log_probs_F)
    for row, item in enumerate(torch.argsort(batch.lengths_N, stable=True).tolist()):
        start = int(batch.starts_N[item] + batch.prompt_lengths_N[item])
        length = int(batch.response_lengths_N[item])
        flat[start : start + length] = log_probs_N_R[row, :length]
    return flat


def test_sft_learns_the_responses_and_resumes_bit_for_bit(
    make_policy: Callable[..., Policy], accelerator: Accelerator
) -> None:
    demonstrations = [EncodedDemonstration([i, 5, i + 1], [2 * i, 7][: 1 + i % 2]) for i in range(10)]
    settings_ = SFTConfig(steps=30, optimizer="muon", learning_rate=3e-3, warmup_steps=2, micro_batch_size=4)
    policy = make_policy()
    learner = SFTLearner(policy, settings_, accelerator)
    losses = [learner.step(demonstrations, step)["loss"] for step in range(20)]
    state = copy.deepcopy((policy.model.state_dict(), learner.state_dict()))
    losses += [learner.step(demonstrations, step)["loss"] for step in range(20, 30)]
    assert losses[-1] < losses[0] / 2

    resumed = make_policy()
    again = SFTLearner(resumed, settings_, accelerator)
    resumed.model.load_state_dict(state[0])
    again.load_state_dict(state[1])
    assert [again.step(demonstrations, step)["loss"] for step in range(20, 30)] == losses[20:]
    assert same(weights(policy), weights(resumed))


def test_sft_loss_is_the_mean_over_response_tokens_whatever_the_micro_batches(
    make_policy: Callable[..., Policy], accelerator: Accelerator
) -> None:
    pairs = [([1, 2, 3], [4, 5, 6]), ([7], [8]), ([9, 10], [11, 12])]
    demonstrations = [EncodedDemonstration(*pair) for pair in pairs]
    results = [
        SFTLearner(make_policy(), SFTConfig(micro_batch_size=size), accelerator).step(demonstrations, 0)
        for size in (1, 2, 64)
    ]
    model = make_policy().model
    total = 0.0
    for prompt, response in pairs:
        with torch.no_grad():
            log_p = torch.log_softmax(model(input_ids=torch.tensor([prompt + response])).logits[0], -1)
        total -= sum(float(log_p[len(prompt) + i - 1, token]) for i, token in enumerate(response))
    for result in results:
        assert result["loss"] == pytest.approx(total / 6, abs=1e-5)
        assert result["grad_norm"] == pytest.approx(results[0]["grad_norm"], abs=1e-5)
        assert result["tokens"] == 6


def test_a_restarted_schedule_is_two_schedules() -> None:
    config = SFTConfig(steps=70, warmup_steps=5, lr_restart_at=1 / 7, lr_restart_scale=0.6, min_lr_ratio=0.1)
    drill = SFTConfig(steps=10, warmup_steps=5, min_lr_ratio=0.1)
    main = SFTConfig(steps=60, warmup_steps=5, min_lr_ratio=0.1)
    rates = [rate_fraction(step, config) for step in range(70)]
    assert rates[:10] == [rate_fraction(step, drill) for step in range(10)]
    assert rates[10:] == pytest.approx([0.6 * rate_fraction(step, main) for step in range(60)])


# Updates that are left out because loss or gradient is not finite.


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
    learner = LocalLearner(policy, config(mini_batch_size=1), accelerator, total_steps=1)
    metrics = learner.update(batch, step=0, seed=0, temperature=1.0)
    assert (metrics["updates"], metrics["skipped_updates"]) == (2, 1)
    assert all(each.isfinite().all() for each in policy.model.parameters())
    (skipped,) = learner.skipped
    assert skipped == f"the loss is nan; not finite before it: {name} at 1 tokens"
    learner.update(make_batch(), step=0, seed=0, temperature=1.0)
    assert not learner.skipped, "they are those of the latest update"
