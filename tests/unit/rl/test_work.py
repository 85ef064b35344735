"""Operations counted against those that torch counts as it computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from skill_ttrl.rl.batch import RolloutBatch
from skill_ttrl.rl.device import update_rates
from skill_ttrl.rl.policy import Policy


def counted(run: Callable[[], Any]) -> int:
    with FlopCounterMode(display=False) as counter:
        run()
    return int(counter.get_total_flops())


@pytest.mark.parametrize("adapters", [False, True])
@pytest.mark.parametrize("packed", [False, True])
def test_operations_are_those_that_torch_counts(
    adapters: bool,
    packed: bool,
    make_policy: Callable[..., Policy],
    make_lora_policy: Callable[..., Policy],
    make_batch: Callable[..., RolloutBatch],
) -> None:
    policy = (make_lora_policy if adapters else make_policy)()
    batch = make_batch(prompts=4, tries=6)
    micro_batch = batch.micro_batch(torch.arange(len(batch)), 0, packed=packed)
    # Scores of queries and keys are a share that torch counts by kernel, padded and not causal: here they are counted apart.
    scores = 4 * policy.work.attention * micro_batch.attention_pairs
    with torch.no_grad():
        found = counted(lambda: policy.token_logprobs(micro_batch))
    assert found == pytest.approx(policy.work.forward(micro_batch) - scores, rel=0.01)

    def learn() -> None:
        policy.token_logprobs(micro_batch)[0].sum().backward()  # type: ignore[no-untyped-call]

    # The first layer's input needs no gradient under adapters, and the frozen head sums its gradient as it goes forward.
    assert counted(learn) == pytest.approx(policy.work.update(micro_batch) - 3 * scores, rel=0.1 if adapters else 0.01)


def test_rates_know_a_gpu_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = {"all_tokens": 3000.0, "operations": 989e12}
    assert update_rates(metrics, 2.0, torch.device("cpu")) == {"update_tokens_per_second": 1500.0}
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H100 80GB HBM3")
    assert update_rates(metrics, 2.0, torch.device("cuda"), 2)["mfu"] == pytest.approx(0.25)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Another")
    assert "mfu" not in update_rates(metrics, 2.0, torch.device("cuda"))
