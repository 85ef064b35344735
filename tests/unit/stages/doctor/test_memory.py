"""The memory estimate: held to what a process really takes, and to what is known of published models.

Run as a script (`python test_memory.py JSON`) this file is the process that is measured.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from skill_ttrl.config import SkillTTRLConfig, load_config
from skill_ttrl.stages.doctor.memory import ASLEEP_BYTES, estimate_memory, longest_turn, memory_advice

SMALL = {"vocab_size": 4000, "hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 6} | {
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "tie_word_embeddings": True,
}
WIDE = {"vocab_size": 2000, "hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 5} | {
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "tie_word_embeddings": True,
}


def run_config(*, votes: int, micro_batch_size: int, kl_coef: float) -> dict[str, Any]:
    """A config whose every prompt has 64 tokens and every completion 64."""
    return {
        "data": {"max_prompt_tokens": 64},
        "rollout": {"n_votes_per_prompt": votes, "n_samples_per_prompt": votes, "max_new_tokens": 64},
        "rl": {"prompts_per_step": 2, "micro_batch_size": micro_batch_size, "kl_coef": kl_coef},
        "runtime": {"device": "cpu", "threads": 1},
    }


def published(**sizes: Any) -> Any:
    """A transformers config with the sizes that a model's authors have published."""
    from transformers import Qwen2Config

    return Qwen2Config(**sizes)


def measured(config: dict[str, Any], model: dict[str, Any], *, steps: int) -> dict[str, int]:
    """Resident memory in bytes of a fresh process that samples and updates: before the model is there, and the peaks."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, __file__, json.dumps({"config": config, "model": model, "steps": steps})],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    found: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return found


def estimated(config: dict[str, Any] | SkillTTRLConfig, model: dict[str, Any]) -> Any:
    return estimate_memory(config if isinstance(config, SkillTTRLConfig) else load_config(config), published(**model))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/status")
@pytest.mark.parametrize(
    ("config", "model"),
    [
        (run_config(votes=4, micro_batch_size=2, kl_coef=0.001), SMALL),
        (run_config(votes=16, micro_batch_size=8, kl_coef=0.0), WIDE),
    ],
    ids=["weights dominate", "activations dominate"],
)
def test_estimate_is_within_a_quarter_of_the_measured_peak(config: dict[str, Any], model: dict[str, Any]) -> None:
    found, estimate = measured(config, model, steps=1), estimated(config, model)
    assert estimate.peak == pytest.approx(max(found["sample"], found["update"]), rel=0.25)
    growth = estimate.peak - estimate.parts["runtime"]
    assert growth == pytest.approx(max(found["sample"], found["update"]) - found["before"], rel=0.35)


@pytest.mark.parametrize(
    ("sizes", "parameters"),
    [
        ((152064, 3584, 18944, 28, 28, 4, False), 7_615_616_512),
        ((151936, 1536, 8960, 28, 12, 2, True), 1_543_714_304),
        ((151936, 896, 4864, 24, 14, 2, True), 494_032_768),
    ],
    ids=["Qwen2.5-7B", "Qwen2.5-1.5B", "Qwen2.5-0.5B"],
)
def test_parameters_are_counted_as_published(sizes: tuple[Any, ...], parameters: int) -> None:
    assert gpu_estimate(SkillTTRLConfig(), sizes).parameters == parameters


def gpu_estimate(config: SkillTTRLConfig, sizes: tuple[Any, ...], total: int = 24_000_000_000) -> Any:
    names = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    model = published(**dict(zip((*names, "num_key_value_heads", "tie_word_embeddings"), sizes, strict=True)))
    return estimate_memory(config, model, device="cuda", total=total)


def test_recipes_fit_where_their_headers_say() -> None:
    big, alone = (152064, 3584, 18944, 28, 28, 4, False), ["runtime.nproc=1", "runtime.parallel=auto"]
    seven = gpu_estimate(load_config("ttrl_qwen2.5_math_7b", alone), big)
    assert seven.parts["weights"] + seven.parts["gradients"] + seven.parts["optimizer"] == 16 * seven.parameters
    assert seven.peak > 140e9
    eighth = gpu_estimate(load_config("ttrl_qwen2.5_math_7b"), big)
    assert 8 * eighth.parts["optimizer"] == seven.parts["optimizer"] and eighth.peak < 80e9
    one = gpu_estimate(load_config("ttrl_qwen2.5_math_1.5b"), (151936, 1536, 8960, 28, 12, 2, True), 80_000_000_000)
    assert one.parts["engine"] == 32e9 and 30e9 < one.peak < 0.9 * 80e9
    half = gpu_estimate(load_config("ttrl_qwen2.5_0.5b_lora"), (151936, 896, 4864, 24, 14, 2, True))
    assert half.parts["weights"] == pytest.approx(2 * 494_032_768 + 4 * half.trainable)
    assert 3e9 < half.peak < 24e9
    beside = gpu_estimate(load_config("ttrl_qwen2.5_0.5b_lora_vllm"), (151936, 896, 4864, 24, 14, 2, True))
    assert beside.parts["weights"] == half.parts["weights"]
    assert beside.parts["engine"] == 12e9 and 12e9 < beside.peak < 0.9 * 24e9


def test_ranks_on_a_cpu_share_its_memory() -> None:
    config = load_config(run_config(votes=4, micro_batch_size=2, kl_coef=0.0), ["runtime.nproc=2"])
    found = estimate_memory(config, published(**WIDE), device="cpu")
    assert (found.ranks, found.on_device) == (2, 2 * found.peak)


def test_each_setting_moves_its_own_part() -> None:
    def parts(*overrides: str) -> dict[str, int]:
        config = load_config(run_config(votes=8, micro_batch_size=4, kl_coef=0.001), overrides)
        return dict(estimate_memory(config, published(**WIDE), device="cpu").parts)

    plain = parts()

    def changed(*overrides: str) -> set[str]:
        return {name for name, size in parts(*overrides).items() if size != plain.get(name)}

    assert changed("rl.kl_coef=0") == {"reference"}
    assert changed("rl.max_staleness=2") == {"sampler"}
    assert changed("model.gradient_checkpointing=true") == {"activations"}
    assert changed("model.packing=off") == changed("model.attn_implementation=eager") - {"sampling"} == {"activations"}
    assert changed("rl.micro_batch_size=2") == {"activations", "logits"}
    assert changed("rollout.max_batch_size=8") == {"sampling"}
    assert changed("phases=[sft, rl]") == {"sft_activations"}


def test_an_engine_and_shards_are_counted_on_their_gpu() -> None:
    big = (152064, 3584, 18944, 28, 28, 4, False)

    def found(*overrides: str) -> Any:
        return gpu_estimate(load_config("ttrl_qwen2.5_math_7b", overrides), big)

    one, ddp, fsdp = found("runtime.nproc=1", "runtime.parallel=auto"), found("runtime.parallel=ddp"), found()
    assert ddp.parts["weights"] == one.parts["weights"] == -(-8 * fsdp.parts["weights"] // 1)
    assert fsdp.parts["gathered"] == 2 * fsdp.parameters
    assert found("runtime.offload=all").parts["optimizer"] == 0
    assert found("runtime.offload=optimizer").phases["update"] < fsdp.phases["update"]
    engine, asleep = (
        found("rollout.backend=vllm", "vllm.gpu_memory_utilization=0.5", f"vllm.enable_sleep_mode={sleeps}")
        for sleeps in ("false", "true")
    )
    assert engine.parts["engine"] == 12e9 and engine.phases["update"] - asleep.phases["update"] == 12e9 - ASLEEP_BYTES


def test_skills_have_room_of_their_own_in_prompts_and_answers() -> None:
    config = load_config(run_config(votes=4, micro_batch_size=2, kl_coef=0.0))
    skills = "skills={prompt_max_tokens: 100, max_retrievals: 2, retrieval_max_tokens: 10}"
    assert longest_turn(config) == (64, 64)
    assert longest_turn(load_config(config.model_dump(mode="json"), [skills])) == (164, 84)
    assert longest_turn(load_config(config.model_dump(mode="json"), [skills, "skills.prompt_top_k=0"])) == (64, 84)
    assert longest_turn(load_config(config.model_dump(mode="json"), [skills, "skills.enabled=false"])) == (64, 64)


def test_adapters_are_counted_as_peft_makes_them() -> None:
    from transformers import Qwen2ForCausalLM

    from skill_ttrl.config import LoraConfig
    from skill_ttrl.llm.models.load import add_lora

    shape = published(**WIDE)
    for targets in ("all-linear", ["q_proj", "down_proj"]):
        lora = {"r": 4, "target_modules": targets}
        config = load_config({"model": {"lora": lora}, "runtime": {"device": "cpu"}})
        model = add_lora(Qwen2ForCausalLM(shape), LoraConfig.model_validate(lora), 0)
        trainable = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
        assert estimate_memory(config, shape).trainable == trainable


WIDE_STEP = [
    "rl.micro_batch_size=4096", "rl.mini_batch_size=null", "rl.prompts_per_step=64", "rollout.max_batch_size=16",
]  # fmt: skip


@pytest.mark.parametrize(
    ("available", "overrides", "advice"),
    [
        (0, [], "model.lora"),
        (0, ["model.lora.r=4"], "smaller model"),
        (2_000_000_000, WIDE_STEP, "gradient_checkpointing=true"),
        (1_500_000_000, [*WIDE_STEP, "model.gradient_checkpointing=true"], "rl.micro_batch_size=1"),
        (700_000_000, ["rl.micro_batch_size=1", "rollout.max_new_tokens=2000"], "rollout.max_batch_size=512"),
    ],
)
def test_what_does_not_fit_names_the_setting_that_helps(available: int, overrides: list[str], advice: str) -> None:
    from skill_ttrl.llm.models.load import load_model_config

    builtin = {"model": {"path": "builtin", "builtin": {"max_positions": 4096}}, "runtime": {"device": "cpu"}}
    config = load_config(builtin, overrides)
    found = estimate_memory(config, load_model_config(config.model))
    largest = max(found.phases, key=lambda name: found.phases[name])
    assert found.on_device > available and advice in memory_advice(config, found, largest, available)


def probe(settings: dict[str, Any]) -> dict[str, int]:
    """Sample and update with a random model, two optimizer steps a step; resident memory before it is there, and the peak of each phase."""
    import asyncio

    from transformers import Qwen2Config, Qwen2ForCausalLM

    from skill_ttrl.llm.backend import Request, Sampling
    from skill_ttrl.llm.hf import HFBackend
    from skill_ttrl.llm.models.builtin import build_tokenizer
    from skill_ttrl.rl.batch import pack, with_advantages
    from skill_ttrl.rl.device import make_accelerator
    from skill_ttrl.rl.learner import LocalLearner
    from skill_ttrl.rl.policy import Policy
    from skill_ttrl.types import Group, Step, Task, Trajectory

    config = load_config(settings["config"])
    accelerator = make_accelerator(config.runtime)
    found = {"before": resident("VmRSS")}
    model = Qwen2ForCausalLM(Qwen2Config(**settings["model"]))
    policy = Policy(model, build_tokenizer(()), "cpu")
    learner = LocalLearner(policy, config.rl, accelerator, total_steps=2)
    backend = HFBackend(policy.model, policy.tokenizer)
    backend.eos_ids = {-1}  # no completion ends early: the estimate is of the longest
    length, tries = config.data.max_prompt_tokens, config.rollout.n_votes_per_prompt
    requests = [Request(n=tries, token_ids=tuple(range(p, p + length))) for p in range(config.rl.prompts_per_step)]
    for step in range(settings["steps"]):
        forget_peak()
        sampling = Sampling(max_new_tokens=config.rollout.max_new_tokens)
        generations = asyncio.run(backend.generate(requests, sampling, seed=step))
        found["sample"] = resident("VmHWM")
        groups = []
        for place, generation in enumerate(generations):
            task = Task(str(place), "none")
            steps = [Step("", "", 0.0, True, False, generation.prompt_ids, done) for done in generation.completions]
            groups.append(Group(task, tuple(Trajectory(task, (played,), None, "terminated") for played in steps)))
        advantages = [float((-1) ** place) for place in range(tries * len(groups))]
        batch = with_advantages(pack(groups), groups, advantages)
        forget_peak()
        batch = learner.score(batch, temperature=1.0, own=False, reference=config.rl.kl_coef > 0)
        learner.update(batch, step=step, seed=0, temperature=1.0)
        found["update"] = resident("VmHWM")
    return found


def resident(key: str) -> int:
    """A line of /proc/self/status in bytes: VmRSS is now, VmHWM the peak."""
    match = re.search(rf"{key}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert match is not None
    return int(match[1]) * 1024


def forget_peak() -> None:
    """Let VmHWM begin again at the present size."""
    Path("/proc/self/clear_refs").write_text("5")


if __name__ == "__main__":
    print(json.dumps(probe(json.loads(sys.argv[1]))))
