"""Gradients of embedding and head that go straight to `.grad` are those of autograd."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import Qwen2Config, Qwen2ForCausalLM

from skill_ttrl.rl.batch import RolloutBatch
from skill_ttrl.rl.forward.gradients import is_plain_embedding, may_gather
from skill_ttrl.rl.pack import EncodedDemonstration, pack_demonstrations
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


def test_autograd_makes_no_gradient_of_the_whole_matrix() -> None:
    policy = Policy(build(tied=True), None, "cpu")
    weight = policy.model.model.embed_tokens.weight
    seen: list[Tensor] = []
    with policy.training(0):
        loss = policy.token_logprobs(batch().micro_batch(torch.arange(3), 0, packed=True))[0].sum()
        node = loss.grad_fn
        stack, names = [node], set()
        while stack:
            node = stack.pop()
            if node is not None and node not in seen:
                seen.append(node)  # type: ignore[arg-type]
                names.add(node.name())
                stack += [parent for parent, _ in node.next_functions]
    assert "EmbeddingBackward0" not in names and "_EmbedBackward" in names
    assert may_gather(weight)


def test_what_something_else_watches_is_left_to_autograd() -> None:
    watched = nn.Embedding(4, 2)
    assert is_plain_embedding(watched)
    watched.weight.register_hook(lambda gradient: gradient)  # type: ignore[no-untyped-call]
    assert not is_plain_embedding(watched)
    hooked = nn.Embedding(4, 2)
    hooked.register_forward_hook(lambda module, args, output: None)
    frozen = nn.Embedding(4, 2).requires_grad_(False)
    listened = nn.Embedding(4, 2)
    listened.weight.register_post_accumulate_grad_hook(lambda parameter: None)  # type: ignore[no-untyped-call]
    assert not any(is_plain_embedding(table) for table in (hooked, frozen, listened, nn.Embedding(4, 2, max_norm=1.0)))
