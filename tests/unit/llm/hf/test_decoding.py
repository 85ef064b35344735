"""Decoding with shared rows: every sample sees the logits of its own text, and no row is computed twice."""

from __future__ import annotations

import contextlib
import gc
import random
import weakref
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import GPT2Config, GPT2LMHeadModel, MistralConfig, MistralForCausalLM, Qwen2Config, Qwen2ForCausalLM

from skill_ttrl.llm.backend import Request, Sampling
from skill_ttrl.llm.hf import HFBackend, decoding, sample_seeds
from skill_ttrl.llm.hf.decoding import Decoding
from skill_ttrl.types import Completion

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


KEPT_SHAPE: dict[str, Any] = {
    "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "initializer_range": 0.3,
}  # fmt: skip
ACTIONS = ("go to 1", "go to 12", "go", "take 3", "take 3 from 4", "look", "stop <when>")


@pytest.fixture(scope="module")
def tokenizer(tiny_model: tuple[Any, Any]) -> Any:
    return tiny_model[1]


def build_backend(tokenizer: Any, *, window: int | None = None) -> HFBackend:
    torch.manual_seed(0)
    size = len(tokenizer)
    model: Any = (
        Qwen2ForCausalLM(Qwen2Config(vocab_size=size, **KEPT_SHAPE))
        if window is None
        else MistralForCausalLM(MistralConfig(vocab_size=size, sliding_window=window, **KEPT_SHAPE))
    )
    return HFBackend(model.eval(), tokenizer)


def episodes(
    backend: HFBackend, *, seed: int, keep: bool, turns: int = 4, choices: tuple[str, ...] = (), **how: Any
) -> list[list[tuple[tuple[int, ...], Completion]]]:
    """Groups of episodes whose prompts extend what was sampled; they end at different times."""
    draw, sampling = random.Random(seed), Sampling(max_new_tokens=9, **how)
    size = len(backend.tokenizer) - 8
    begin = [tuple(draw.randrange(size) for _ in range(draw.choice((1, 3, 12)))) for _ in range(3)]
    living: dict[int, tuple[int, ...]] = {number: begin[number % 3] for number in range(7)}
    found: list[list[tuple[tuple[int, ...], Completion]]] = [[] for _ in living]
    with backend.keeping() if keep else contextlib.nullcontext():
        for turn in range(turns):
            asked: dict[tuple[int, ...], list[int]] = {}
            for number, tokens in living.items():
                asked.setdefault(tokens, []).append(number)
            requests = [
                Request(token_ids=tokens, n=len(rows), choice=choices[place % 2 :], slot_words=("now", "at 12"))
                for place, (tokens, rows) in enumerate(asked.items())
            ]
            generations = backend.sample(requests, sampling, sample_seeds(requests, seed + turn))
            for rows, generation in zip(asked.values(), generations, strict=True):
                for number, done in zip(rows, generation.completions, strict=True):
                    found[number].append((generation.prompt_ids, done))
                    seen = tuple(draw.randrange(size) for _ in range(draw.randrange(1, 6)))
                    living[number] = (*generation.prompt_ids, *done.token_ids, *seen)
            gone = draw.choice(list(living))
            del living[gone]
    return found


def same(one: Any, other: Any) -> None:
    for first, second in zip(one, other, strict=True):
        for (prompt, done), (other_prompt, other_done) in zip(first, second, strict=True):
            assert prompt == other_prompt and done.token_ids == other_done.token_ids
            assert done.allowed == other_done.allowed and done.finish_reason == other_done.finish_reason
            assert done.logprobs == pytest.approx(other_done.logprobs, abs=1e-4)


@pytest.mark.slow
@settings(max_examples=12)
@given(st.integers(0, 10_000), st.booleans(), st.sampled_from([{}, {"temperature": 0.0}, {"top_k": 5, "top_p": 0.9}]))
def test_episodes_are_the_same_with_kept_rows_and_without(
    tokenizer: Any, seed: int, constrained: bool, how: dict[str, Any]
) -> None:
    backend, choices = build_backend(tokenizer), ACTIONS if constrained else ()
    plain = episodes(backend, seed=seed, keep=False, choices=choices, **how)
    same(episodes(backend, seed=seed, keep=True, choices=choices, **how), plain)
    assert backend._kept_rows is None


def test_also_with_adapters(tokenizer: Any) -> None:
    from peft import LoraConfig, get_peft_model

    backend = build_backend(tokenizer)
    backend.model = get_peft_model(
        backend.model, LoraConfig(target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    )
    plain = episodes(backend, seed=3, keep=False, choices=ACTIONS)
    same(episodes(backend, seed=3, keep=True, choices=ACTIONS), plain)
    with backend.model.disable_adapter(), pytest.raises(AssertionError):
        same(episodes(backend, seed=3, keep=True, choices=ACTIONS), plain)


@pytest.mark.parametrize("rows", [2, 3])
def test_also_where_rows_are_taken_in_turns_or_memory_is_short(tokenizer: Any, rows: int) -> None:
    backend = build_backend(tokenizer)
    plain = episodes(backend, seed=1, keep=False, choices=ACTIONS)
    backend.max_batch_size = rows
    same(episodes(backend, seed=1, keep=True, choices=ACTIONS), plain)
    backend.kept_bytes = 20_000
    same(episodes(backend, seed=1, keep=True, choices=ACTIONS), plain)
    backend.kept_bytes = 0
    same(episodes(backend, seed=1, keep=True, choices=ACTIONS), plain)


def read_tokens(backend: HFBackend) -> list[int]:
    """Record the number of tokens that each forward pass is given, from now on."""
    seen: list[int] = []
    backend.model.register_forward_pre_hook(
        lambda module, args, options: seen.append(options["input_ids"].numel()), with_kwargs=True
    )
    return seen


def test_only_new_tokens_are_computed(tokenizer: Any) -> None:
    backend = build_backend(tokenizer)
    seen = read_tokens(backend)
    (prompt,), sampling = [tuple(range(20))], Sampling(max_new_tokens=4)
    with backend.keeping():
        (first,) = backend.sample([Request(token_ids=prompt)], sampling, [[0]])
        assert seen == [20, 1, 1, 1]
        seen.clear()
        longer = (*prompt, *first.completions[0].token_ids, 5, 6)
        backend.sample([Request(token_ids=longer)], sampling, [[0]])
        assert seen[0] == 3  # the last sampled token had not been read
        seen.clear()
        backend.sample([Request(token_ids=longer)], sampling, [[0]])
        assert seen[0] == 1  # it is read again for its logits
    seen.clear()
    backend.sample([Request(token_ids=longer)], sampling, [[0]])
    assert seen[0] == len(longer)


def test_nothing_is_kept_past_a_change_of_weights(tokenizer: Any) -> None:
    backend, fresh = build_backend(tokenizer), build_backend(tokenizer)
    request, sampling = Request(token_ids=tuple(range(12))), Sampling(max_new_tokens=3)
    with backend.keeping():
        backend.sample([request], sampling, [[0]])
        for part in (backend, fresh):
            with torch.no_grad():
                for weights in part.model.parameters():
                    weights.mul_(1.5)
        (now,), (expected,) = (part.sample([request], sampling, [[0]]) for part in (backend, fresh))
        assert now.completions[0].token_ids == expected.completions[0].token_ids
        assert now.completions[0].logprobs == pytest.approx(expected.completions[0].logprobs, abs=1e-4)
        backend.update_weights(3)
        assert backend._kept_rows is None


def test_a_sliding_window_keeps_nothing_and_constrains_all_the_same(tokenizer: Any) -> None:
    backend = build_backend(tokenizer, window=4)
    seen = read_tokens(backend)
    plain = episodes(backend, seed=2, keep=False, choices=ACTIONS)
    before = sum(seen)
    same(episodes(backend, seed=2, keep=True, choices=ACTIONS), plain)
    assert sum(seen) == 2 * before
