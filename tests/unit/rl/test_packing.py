"""Packed micro-batches against padded ones: log-probs, entropies and gradients are the same."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from skill_ttrl.config import RLConfig
from skill_ttrl.errors import ModelError
from skill_ttrl.rl import micro_batch as tree
from skill_ttrl.rl.batch import EncodedDemonstration, RolloutBatch, pack_demonstrations
from skill_ttrl.rl.learner import LocalLearner
from skill_ttrl.rl.micro_batch import NAME, lay_out
from skill_ttrl.rl.policy import Policy

VOCABULARY = 40
SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 24, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.2,
}  # fmt: skip
FAMILIES: dict[str, Callable[..., Any]] = {
    "qwen2": lambda **changes: Qwen2ForCausalLM(Qwen2Config(**(SHAPE | changes))),
    "llama": lambda **changes: LlamaForCausalLM(LlamaConfig(**(SHAPE | changes))),
    "qwen3": lambda **changes: Qwen3ForCausalLM(Qwen3Config(**(SHAPE | {"head_dim": 8} | changes))),
}


def build(family: str = "qwen2", **changes: Any) -> Any:
    torch.manual_seed(0)
    return FAMILIES[family](**changes)


@cache
def plain_policy() -> Policy:
    return Policy(build(), None, "cpu")


def adapted(model: Any) -> Any:
    from peft import LoraConfig, get_peft_model

    return get_peft_model(model, LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False))


def batch_of(shape: list[tuple[int, int, bool]], *, alphabet: int = 3, seed: int = 0) -> RolloutBatch:
    """Items of (prompt, response tokens, with an inserted token); prompts of 2 to 7 tokens, responses of few different ones."""
    draw = random.Random(seed)
    prompts = [[draw.randrange(VOCABULARY) for _ in range(2 + 5 * number % 6)] for number in range(4)]
    found = []
    for prompt, length, inserted in shape:
        mask = [True] * length
        if inserted and length > 2:
            mask[1] = False
        found.append(EncodedDemonstration(prompts[prompt], [draw.randrange(alphabet) for _ in range(length)], mask))
    return pack_demonstrations(found)


MIXED = [(0, 5, False), (0, 1, False), (0, 8, True), (0, 5, False), (1, 3, False), (2, 1, False), (1, 6, True)]


def scores_and_gradients(
    policy: Policy, batch: RolloutBatch, *, packed: bool
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    micro_batch = lay_out(batch, torch.arange(len(batch)), 39, packed=packed)
    assert (micro_batch.tree is not None) == packed
    log_probs, entropy = policy.token_logprobs(micro_batch, temperature=0.7, with_entropy=True)
    assert entropy is not None
    draw = torch.Generator().manual_seed(5)
    pull, entropy_pull = (torch.randn(log_probs.shape, generator=draw) for _ in range(2))
    policy.model.zero_grad()
    (log_probs * pull + 0.3 * entropy * entropy_pull).sum().backward()  # type: ignore[no-untyped-call]
    gradients = {
        name: parameter.grad.clone()
        for name, parameter in policy.trainable_parameters().items()
        if parameter.grad is not None
    }
    return log_probs.detach(), entropy.detach(), gradients


def assert_equal_to_padded(policy: Policy, batch: RolloutBatch, tolerance: float = 1e-5) -> None:
    log_probs, entropy, gradients = scores_and_gradients(policy, batch, packed=False)
    packed, packed_entropy, packed_gradients = scores_and_gradients(policy, batch, packed=True)
    torch.testing.assert_close(packed, log_probs, atol=tolerance, rtol=0)
    torch.testing.assert_close(packed_entropy, entropy, atol=tolerance, rtol=0)
    assert packed_gradients.keys() == gradients.keys() and gradients
    for name, gradient in gradients.items():
        scale = max(1.0, float(gradient.abs().max()))
        torch.testing.assert_close(packed_gradients[name], gradient, atol=tolerance * scale, rtol=0, msg=name)


@pytest.mark.parametrize("family", list(FAMILIES))
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("adapters", [False, True])
def test_packed_is_exact(family: str, tied: bool, checkpointing: bool, adapters: bool) -> None:
    model = build(family, tie_word_embeddings=tied)
    policy = Policy(
        adapted(model) if adapters else model, None, "cpu", gradient_checkpointing=checkpointing, packing="on"
    )
    batch = batch_of(MIXED)
    with policy.training(0):
        assert_equal_to_padded(policy, batch)
    packed = lay_out(batch, torch.arange(len(batch)), 39, packed=True)
    assert packed.computed_tokens < 0.7 * int(batch.lengths_N.sum())


@pytest.mark.parametrize("small", [0, 2048], ids=["many blocks", "few blocks"])
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9), st.booleans()), min_size=1, max_size=14),
    st.sampled_from([1, 2, 30]),
    st.integers(0, 99),
)
def test_packed_is_exact_for_any_items(
    small: int, shape: list[tuple[int, int, bool]], alphabet: int, seed: int
) -> None:
    before, tree.SMALL_BLOCK = tree.SMALL_BLOCK, small
    try:
        assert_equal_to_padded(plain_policy(), batch_of(shape, alphabet=alphabet, seed=seed))
    finally:
        tree.SMALL_BLOCK = before


def test_items_without_trained_tokens_get_zeros() -> None:
    batch = batch_of(MIXED)
    trained = batch.trained_F.clone()
    trained[batch.starts_N[2] : batch.starts_N[3]] = False
    batch = replace(batch, trained_F=trained)
    policy = Policy(build(), None, "cpu")
    log_probs, _, _ = scores_and_gradients(policy, batch, packed=True)
    assert not log_probs[2].any() and log_probs[0].any()
    assert_equal_to_padded(policy, batch)


def test_bf16_autocast_is_as_near_to_float32_as_padded_rows_are() -> None:
    batch, policy = batch_of(MIXED), Policy(build(), None, "cpu")
    exact = scores_and_gradients(policy, batch, packed=False)[0]
    with torch.autocast("cpu", torch.bfloat16):
        padded = scores_and_gradients(policy, batch, packed=False)[0]
        packed = scores_and_gradients(policy, batch, packed=True)[0]
    assert packed.dtype == torch.float32
    near = float((padded - exact).norm())
    assert 0 < float((packed - exact).norm()) <= 2 * near


def test_the_learner_takes_the_same_step(accelerator: Accelerator, make_batch: Callable[..., RolloutBatch]) -> None:
    batch = make_batch(prompts=3, tries=6)
    weights = {}
    for packing in ("off", "on"):
        policy = Policy(build(), None, "cpu", packing=packing)
        assert policy.packs == (packing == "on")
        config = RLConfig(kl_coef=0.0, learning_rate=1e-2, mini_batch_size=2)
        learner = LocalLearner(policy, config, accelerator, total_steps=1)
        metrics = learner.update(batch, step=0, seed=0, temperature=1.0)
        assert metrics["updates"] == 2
        weights[packing] = {name: value.detach().clone() for name, value in policy.trainable_parameters().items()}
    for name, value in weights["off"].items():
        torch.testing.assert_close(weights["on"][name], value, atol=1e-5, rtol=0)


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "eager": (lambda: build(attn_implementation="eager"), "attention is 'eager'"),
    "sliding": (lambda: MistralForCausalLM(MistralConfig(**SHAPE, sliding_window=4)), "sliding window of 4"),
    "window": (
        lambda: build(use_sliding_window=True, sliding_window=4, max_window_layers=1), "layers of sliding_attention"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", list(REFUSED))
def test_models_that_cannot_be_packed_say_why(name: str) -> None:
    make, reason = REFUSED[name]
    model = make()
    before = model.config._attn_implementation
    policy = Policy(model, None, "cpu")
    assert not policy.packs and policy.packing_refused is not None and reason in policy.packing_refused
    assert model.config._attn_implementation == before
    with pytest.raises(ModelError, match=r"model.packing is on, but .* cannot be packed"):
        Policy(make(), None, "cpu", packing="on")
    assert Policy(make(), None, "cpu", packing="off").packing_refused is None
    batch = batch_of(MIXED)
    assert policy.lay_out(batch, torch.arange(3)).tree is None


def test_a_model_that_computes_trees_wrongly_is_found_out() -> None:
    model = build()
    layer = model.model.layers[1].self_attn
    forward = layer.forward
    layer.forward = lambda *args, **options: forward(*args, **{k: v for k, v in options.items() if k != "prefix_tree"})
    policy = Policy(model, None, "cpu")
    assert not policy.packs and policy.packing_refused is not None and "hidden states differ" in policy.packing_refused


def test_learned_positions_are_packed_too() -> None:
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, n_positions=32, n_embd=16, n_layer=2, n_head=2))
    policy = Policy(model, None, "cpu", packing="on")
    assert_equal_to_padded(policy, batch_of(MIXED))


def test_sampling_passes_are_left_as_they_were() -> None:
    plain, packed = build().eval(), build().eval()
    assert Policy(packed, None, "cpu").packs and packed.config._attn_implementation == NAME
    ids = torch.tensor([[39, 39, 1, 2, 3], [4, 5, 6, 7, 8]])
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    with torch.no_grad():
        assert torch.equal(plain(ids, attention_mask=mask).logits, packed(ids, attention_mask=mask).logits)
    assert NAME not in str(packed.config.to_dict())
