"""Gradients of embedding and head that go straight to `.grad` are those of autograd."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import Qwen2Config, Qwen2ForCausalLM

from skill_ttrl.rl.batch import EncodedDemonstration, RolloutBatch, pack_demonstrations
from skill_ttrl.rl.policy import Policy

PAD = 7


def build(*, tied: bool, **changes: Any) -> Any:
    torch.manual_seed(0)
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=40, hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2,
            num_key_value_heads=1, initializer_range=0.3, tie_word_embeddings=tied, pad_token_id=PAD, **changes,
        )
    )  # fmt: skip


def batch() -> RolloutBatch:
    rows = [([1, 2, PAD, 3], [4, PAD, 5]), ([1, 2, PAD, 3], [4, 6]), ([PAD], [2, 2, 2, PAD])]
    return pack_demonstrations([EncodedDemonstration(prompt, response) for prompt, response in rows])


def gradients(policy: Policy, *, packed: bool, twice: bool) -> dict[str, Tensor]:
    policy.model.zero_grad()
    for _ in range(1 + twice):
        micro_batch = batch().micro_batch(torch.arange(3), 0, packed=packed)
        policy.token_logprobs(micro_batch)[0].sum().backward()  # type: ignore[no-untyped-call]
    found = {name: value.grad for name, value in policy.model.named_parameters() if value.grad is not None}
    return {name: value.clone() for name, value in found.items()}


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("twice", [True, False], ids=["gathered", "first"])
@pytest.mark.parametrize("budget", [0, 10_000])
@pytest.mark.parametrize("bf16", [False, True])
def test_they_are_autograds(tied: bool, packed: bool, twice: bool, budget: int, bf16: bool) -> None:
    policy = Policy(build(tied=tied), None, "cpu", logit_budget=budget)
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        expected = gradients(policy, packed=packed, twice=twice)
        with policy.training(0):
            assert policy._gathers
            found = gradients(policy, packed=packed, twice=twice)
    assert not policy._gathers and found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, atol=1e-5, rtol=1e-2 if bf16 else 1e-5, msg=name)
    embedding = found["model.embed_tokens.weight"]
    assert bool(embedding[PAD].any()) == tied  # its row learns as the head's alone
