"""Decoding with shared rows: every sample sees the logits of its own text, and no row is computed twice."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import GPT2Config, GPT2LMHeadModel, MistralConfig, MistralForCausalLM, Qwen2Config, Qwen2ForCausalLM

from skill_ttrl.llm.hf import decoding
from skill_ttrl.llm.hf.decoding import Decoding

VOCABULARY = 12
SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.3,
}  # fmt: skip
MODELS: dict[str, Callable[[], Any]] = {
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SHAPE)),
    "eager": lambda: Qwen2ForCausalLM(Qwen2Config(**(SHAPE | {"attn_implementation": "eager"}))),
    "sliding window": lambda: MistralForCausalLM(MistralConfig(**SHAPE, sliding_window=4)),
    "learned positions": lambda: GPT2LMHeadModel(
        GPT2Config(vocab_size=VOCABULARY, n_positions=40, n_embd=16, n_layer=2, n_head=2)
    ),
}


@cache
def build(name: str) -> Any:
    torch.manual_seed(0)
    return MODELS[name]().eval()


@torch.no_grad()
def follow(model: Any, prompts: list[tuple[int, ...]], texts: dict[int, list[list[int]]]) -> tuple[list[int], float]:
    """Let samples with given texts (by prompt) go through the decoder; the rows of each step, and the largest error of a logit."""
    samples = [(prompts[prompt], text) for prompt, several in texts.items() for text in several]
    slots = torch.tensor([prompt for prompt, several in texts.items() for _ in several])
    longest = max(len(text) for _, text in samples)
    state = Decoding(model, prompts, 0, most_rows=len(samples), most_new_tokens=longest)
    alone = cache(lambda ids: model(torch.tensor([ids])).logits[0, -1])
    running, rows, error = torch.arange(len(samples)), [], 0.0
    for step in range(longest + 1):
        for place, slot in zip(running.tolist(), slots.tolist(), strict=True):
            prompt, text = samples[place]
            own = alone((*prompt, *text[:step]))
            error = max(error, float((state.logits_S_V[slot] - own).abs().max()))
        rows.append(len(state.logits_S_V))
        on = torch.tensor([len(samples[place][1]) > step for place in running.tolist()], dtype=torch.bool)
        running, slots = running[on], slots[on]
        if len(running) == 0:
            break
        slots = state.advance(slots, torch.tensor([samples[place][1][step] for place in running.tolist()]))
    return rows, error


texts = st.dictionaries(
    st.integers(0, 2), st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=7), min_size=1, max_size=8), min_size=1
)


@pytest.mark.parametrize("name", list(MODELS))
@settings(max_examples=8)
@given(texts, st.integers(1, 3), st.sampled_from([(), (8, 9, 7)]))
def test_each_sample_sees_its_own_logits(
    name: str, texts: dict[int, list[list[int]]], growth: int, header: tuple[int, ...]
) -> None:
    prompts: list[tuple[int, ...]] = [(*header, *prompt) for prompt in [(1, 2, 3, 4, 5), (6,), (1, 2, 7)]]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoding, "LEAST_GROWTH", growth)
        patch.setattr(decoding, "LEAST_HEADER", 3)
        rows, error = follow(build(name), prompts, texts)
    assert error < 1e-4
    for step, count in enumerate(rows[1:], 1):
        different = {
            (prompt, *text[:step]) for prompt, several in texts.items() for text in several if len(text) >= step
        }
        assert count == len(different)


def test_memory_is_free_when_nobody_decodes() -> None:
    model = build("qwen2")
    gc.collect()
    gc.disable()
    try:
        with torch.no_grad():
            state = Decoding(model, [(1, 2, 3)], 0, most_rows=2, most_new_tokens=4)
            state.advance(torch.zeros(2, dtype=torch.long), torch.tensor([4, 5]))
        layer: Any = state._cache.layers[0]
        keys = weakref.ref(layer.keys)
        del state, layer
        assert keys() is None
    finally:
        gc.enable()
