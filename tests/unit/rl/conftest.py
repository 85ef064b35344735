"""A tiny random Qwen2 and sampled groups for the learner's tests."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from torch import Tensor
from transformers import Qwen2Config, Qwen2ForCausalLM

from skill_ttrl.config import RuntimeConfig
from skill_ttrl.rl.batch import RolloutBatch, pack, with_advantages
from skill_ttrl.rl.device import make_accelerator
from skill_ttrl.rl.policy import Policy
from skill_ttrl.types import Completion, Group, Step, Task, Trajectory

VOCABULARY = 40


class Tokenizer:
    """All that the policy asks of a tokenizer."""

    pad_token_id = 39


def _model(**changes: Any) -> Qwen2ForCausalLM:
    torch.manual_seed(0)
    shape: dict[str, Any] = {
        "vocab_size": VOCABULARY, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 1, "tie_word_embeddings": True, "initializer_range": 0.2,
    }  # fmt: skip
    return Qwen2ForCausalLM(Qwen2Config(**(shape | changes)))


def weights(policy: Policy) -> dict[str, Tensor]:
    """Copies of a policy's weights."""
    return {name: parameter.detach().clone() for name, parameter in policy.model.named_parameters()}


def same(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    """True if all weights are the same, bit for bit."""
    return all(torch.equal(left[name], right[name]) for name in left)


@pytest.fixture
def make_model() -> Callable[..., Qwen2ForCausalLM]:
    """The same weights at each call."""
    return _model


@pytest.fixture
def make_policy() -> Callable[..., Policy]:
    """A policy over the tiny model, the same weights at each call."""

    def make(**options: Any) -> Policy:
        return Policy(_model(), Tokenizer(), "cpu", **options)

    return make


@pytest.fixture
def make_lora_policy() -> Callable[..., Policy]:
    """The same with adapters whose second factor is not zero, so that they change the output."""
    from peft import LoraConfig, get_peft_model

    def make(**options: Any) -> Policy:
        torch.manual_seed(1)
        adapted = get_peft_model(_model(), LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False))
        return Policy(adapted, Tokenizer(), "cpu", **options)

    return make


@pytest.fixture
def accelerator() -> Accelerator:
    """CPU, fp32."""
    return make_accelerator(RuntimeConfig(device="cpu", precision="fp32"))


@pytest.fixture
def make_groups() -> Callable[..., list[Group]]:
    """Groups of random tries: prompts of 2-5 tokens, responses of 1-6, `turns` steps each."""

    def make(prompts: int = 3, tries: int = 4, turns: int = 1, seed: int = 0) -> list[Group]:
        draw = random.Random(seed)

        def ids(low: int, high: int) -> tuple[int, ...]:
            return tuple(draw.randrange(VOCABULARY - 1) for _ in range(draw.randint(low, high)))

        def step(prompt: tuple[int, ...]) -> Step:
            response = ids(1, 6)
            log_probs = tuple(-3.7 + 0.3 * draw.random() for _ in response)
            completion = Completion("", response, log_probs, "stop")
            return Step("", "", 0.0, True, False, prompt_ids=prompt, completion=completion)

        groups = []
        for index in range(prompts):
            task, prompt = Task(id=f"t{index}", env_id="e"), ids(2, 5)
            trajectories = [
                Trajectory(task, tuple(step(prompt) for _ in range(turns)), None, "terminated") for _ in range(tries)
            ]
            groups.append(Group(task, tuple(trajectories)))
        return groups

    return make


@pytest.fixture
def make_batch(make_groups: Callable[..., list[Group]]) -> Callable[..., RolloutBatch]:
    """Those groups packed, with the given advantages or random ones."""

    def make(advantages: list[float] | None = None, **options: Any) -> RolloutBatch:
        groups = make_groups(**options)
        count = sum(len(group.trajectories) for group in groups)
        draw = random.Random(9)
        return with_advantages(pack(groups), groups, advantages or [draw.gauss(0, 1) for _ in range(count)])

    return make
