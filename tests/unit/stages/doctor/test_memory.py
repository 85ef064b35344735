"""The memory estimate: what is known of published models, and the setting that moves each part."""

from __future__ import annotations

from typing import Any

import pytest

from skill_ttrl.config import SkillTTRLConfig, load_config
from skill_ttrl.stages.doctor.memory import H100_BYTES, estimate_memory, longest_turn, memory_advice

NAMES = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
SEVEN = (152064, 3584, 18944, 28, 28, 4, False)
SMALL = (2000, 256, 1024, 5, 4, 4, True)
RUN: dict[str, Any] = {
    "data": {"max_prompt_tokens": 64},
    "rollout": {"n_votes_per_prompt": 8, "n_samples_per_prompt": 8, "max_new_tokens": 64},
    "rl": {"prompts_per_step": 2, "micro_batch_size": 4, "kl_coef": 0.001},
    "runtime": {"device": "cpu", "threads": 1},
}


def estimate(config: SkillTTRLConfig, sizes: tuple[Any, ...], device: str = "cuda") -> Any:
    """The estimate for a model with the sizes that its authors have published."""
    from transformers import Qwen2Config

    shape: dict[str, Any] = dict(zip((*NAMES, "num_key_value_heads", "tie_word_embeddings"), sizes, strict=True))
    return estimate_memory(config, Qwen2Config(**shape), device=device)


def test_recipes_fit_where_their_headers_say() -> None:
    alone = estimate(load_config("ttrl_qwen2.5_math_7b", ["runtime.nproc=1", "runtime.parallel=auto"]), SEVEN)
    assert alone.parameters == 7_615_616_512 and alone.peak > 140e9
    assert alone.parts["gradients"] + alone.parts["optimizer"] == 12 * alone.parameters
    eighth = estimate(load_config("ttrl_qwen2.5_math_7b"), SEVEN)
    assert 8 * eighth.parts["optimizer"] == alone.parts["optimizer"] and eighth.peak < H100_BYTES
    half = estimate(load_config("ttrl_qwen2.5_0.5b_lora"), (151936, 896, 4864, 24, 14, 2, True))
    assert half.parameters - half.trainable == 494_032_768 and 3e9 < half.peak < 24e9


def test_ranks_on_a_cpu_share_its_memory() -> None:
    found = estimate(load_config(RUN, ["runtime.nproc=2"]), SMALL, "cpu")
    assert (found.ranks, found.on_device) == (2, 2 * found.peak)


@pytest.mark.parametrize(
    ("override", "part"),
    [
        ("rl.kl_coef=0", "reference"),
        ("rl.max_staleness=2", "sampler"),
        ("model.gradient_checkpointing=true", "activations"),
        ("rl.micro_batch_size=2", "activations"),
        ("rollout.max_batch_size=8", "sampling"),
        ("phases=[sft, rl]", "activations"),
    ],
)
def test_each_setting_moves_its_own_part(override: str, part: str) -> None:
    plain, changed = (estimate(load_config(RUN, each), SMALL, "cpu").parts for each in ([], [override]))
    assert {name for name, size in changed.items() if size != plain[name]} == {part}


def test_skills_have_room_of_their_own_in_prompts_and_answers() -> None:
    skills = "skills={prompt_max_tokens: 100, max_retrievals: 2, retrieval_max_tokens: 10}"
    assert longest_turn(load_config(RUN)) == (64, 64)
    assert longest_turn(load_config(RUN, [skills])) == (164, 84)
    assert longest_turn(load_config(RUN, [skills, "skills.enabled=false"])) == (64, 64)


WIDE_STEP = ["rl.micro_batch_size=4096", "rl.mini_batch_size=null", "rl.prompts_per_step=64"]


@pytest.mark.parametrize(
    ("available", "overrides", "advice"),
    [
        (0, [], "model.lora"),
        (0, ["model.lora.r=4"], "smaller model"),
        (1_000_000_000, WIDE_STEP, "gradient_checkpointing=true"),
        (500_000_000, [*WIDE_STEP, "model.gradient_checkpointing=true"], "rl.micro_batch_size=1"),
        (500_000_000, ["rl.micro_batch_size=1", "rollout.max_new_tokens=2000"], "rollout.max_batch_size=512"),
    ],
)
def test_what_does_not_fit_names_the_setting_that_helps(available: int, overrides: list[str], advice: str) -> None:
    from skill_ttrl.llm.models.load import load_model_config

    builtin = {"model": {"path": "builtin", "builtin": {"max_positions": 4096}}, "runtime": {"device": "cpu"}}
    config = load_config(builtin, overrides)
    found = estimate_memory(config, load_model_config(config.model))
    largest = max(found.phases, key=lambda name: found.phases[name])
    assert found.on_device > available and advice in memory_advice(config, found, largest, available)
