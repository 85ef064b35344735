"""The memory estimate: held to what a process really takes, and to what is known of published models.

Run as a script (`python test_memory.py JSON`) this file is the process that is measured.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from skill_ttrl.config import SkillTTRLConfig, load_config
from skill_ttrl.rl.forward.head import GPU_BLOCK
from skill_ttrl.rl.policy import LOGIT_BUDGET
from skill_ttrl.stages.doctor.memory import (
    ASLEEP_BYTES,
    ENGINE_BYTES,
    estimate_memory,
    longest_turn,
    memory_advice,
)

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


def measured(
    config: dict[str, Any], model: dict[str, Any], *, steps: int, keep_no_heap: bool = False
) -> dict[str, int]:
    """Resident memory in bytes of a fresh process that samples and updates: before the model is there, and the peaks."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    if keep_no_heap:
        environment |= {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
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


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/status")
def test_formulas_are_within_a_sixth_of_what_is_allocated() -> None:
    config = run_config(votes=16, micro_batch_size=8, kl_coef=0.001)
    found, estimate = measured(config, WIDE, steps=2, keep_no_heap=True), estimated(config, WIDE)
    aside = estimate.parts["runtime"] + estimate.parts["heap"]
    assert estimate.phases["update"] - aside == pytest.approx(found["update"] - found["before"], rel=1 / 6)
    sampling = estimate.phases["sample"] - estimate.parts["runtime"]
    assert sampling == pytest.approx(found["sample"] - found["before"], rel=1 / 6)


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
    return estimate_memory(config, model, device="cuda", precision="bf16", total=total)


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


def test_ranks_share_weights_and_rows_but_not_activations() -> None:
    sizes = (152064, 3584, 18944, 28, 28, 4, False)

    def found(*overrides: str) -> Any:
        return gpu_estimate(load_config("ttrl_qwen2.5_math_7b", overrides), sizes)

    one, ddp, fsdp = found("runtime.nproc=1", "runtime.parallel=auto"), found("runtime.parallel=ddp"), found()
    assert (one.ranks, ddp.ranks, fsdp.ranks) == (1, 8, 8)
    for part in ("weights", "gradients", "optimizer", "reference"):
        assert ddp.parts[part] == one.parts[part] and fsdp.parts[part] == -(-one.parts[part] // 8)
    for part in ("activations", "logits", "runtime"):
        assert one.parts[part] == ddp.parts[part] == fsdp.parts[part]
    assert ddp.parts["kv_cache"] == fsdp.parts["kv_cache"] == pytest.approx(one.parts["kv_cache"] / 8)
    assert fsdp.parts["gathered_to_sample"] == 2 * fsdp.parameters > fsdp.parts["gathered"]
    assert fsdp.on_device == fsdp.peak
    kept = found("runtime.param_offload=true")
    assert kept.parts["weights"] == kept.parts["optimizer"] == 0
    state = found("runtime.optimizer_offload=true")
    assert state.parts["optimizer"] == 0 and state.parts["optimizer_in_step"] == fsdp.parts["optimizer"]
    assert state.phases["step"] < state.phases["update"] < fsdp.phases["update"]


def test_a_sampler_that_runs_ahead_is_a_second_model_and_samples_while_the_learner_learns() -> None:
    settings = run_config(votes=8, micro_batch_size=2, kl_coef=0.0)
    turns, ahead = (
        estimate_memory(load_config(settings, [f"rl.max_staleness={steps}"]), published(**SMALL), device="cpu")
        for steps in (0, 2)
    )
    assert turns.parts["sampler"] == 0 and ahead.parts["sampler"] == ahead.parts["weights"]
    assert {**ahead.parts, "sampler": 0} == dict(turns.parts)
    more = ahead.parts["sampler"] + ahead.parts["kv_cache"] + ahead.parts["sampling"]
    assert ahead.phases["update"] - turns.phases["update"] == more > ahead.parts["sampler"]
    assert ahead.phases["sample"] - turns.phases["sample"] == ahead.parts["sampler"]


def test_ranks_on_a_cpu_share_its_memory() -> None:
    config = load_config(run_config(votes=4, micro_batch_size=2, kl_coef=0.0), ["runtime.nproc=2"])
    found = estimate_memory(config, published(**WIDE), device="cpu", precision="fp32")
    assert (found.ranks, found.parallel, found.on_device) == (2, "ddp", 2 * found.peak)


def test_episodes_of_many_turns_are_kept_until_they_are_learned_from() -> None:
    def found(*overrides: str) -> Any:
        return estimated(
            load_config(run_config(votes=4, micro_batch_size=2, kl_coef=0.0), ["model.packing=off", *overrides]), WIDE
        )

    one, many = found(), found("agent.max_turns=50")
    assert many.parts["episodes"] == 50 * one.parts["episodes"] and many.parts["batch"] == 50 * one.parts["batch"]
    grown = many.phases["update"] - one.phases["update"]
    assert grown == 49 * (2 * 4 * 128) * 70 and many.parts["activations"] == one.parts["activations"]
    assert many.phases["sample"] - one.phases["sample"] == 49 * (2 * 4 * 128) * 43


def test_skills_have_room_of_their_own_in_prompts_and_answers() -> None:
    config = load_config(run_config(votes=4, micro_batch_size=2, kl_coef=0.0))
    skills = "skills={prompt_max_tokens: 100, max_retrievals: 2, retrieval_max_tokens: 10}"
    assert longest_turn(config) == (64, 64)
    assert longest_turn(load_config(config.model_dump(mode="json"), [skills])) == (164, 84)
    assert longest_turn(load_config(config.model_dump(mode="json"), [skills, "skills.prompt_top_k=0"])) == (64, 84)
    assert longest_turn(load_config(config.model_dump(mode="json"), [skills, "skills.enabled=false"])) == (64, 64)


def test_engine_in_this_process_takes_its_share() -> None:
    def found(*overrides: str, device: str = "cuda") -> Any:
        config = load_config(run_config(votes=8, micro_batch_size=4, kl_coef=0.0), ["rollout.backend=vllm", *overrides])
        precision = "fp32" if device == "cpu" else "bf16"
        return estimate_memory(config, published(**WIDE), device=device, precision=precision, total=10**11)

    share = found("vllm.gpu_memory_utilization=0.25")
    assert share.parts["engine"] == 25 * 10**9 and share.parts["kv_cache"] == share.parts["sampling"] == 0
    assert all(size > 25e9 for size in share.phases.values())
    asleep = found("vllm.gpu_memory_utilization=0.25", "vllm.enable_sleep_mode=true")
    assert asleep.phases["sample"] == share.phases["sample"]
    assert share.phases["update"] - asleep.phases["update"] == 25 * 10**9 - ASLEEP_BYTES
    assert found("vllm.mode=server").parts["engine"] == found("rollout.backend=openai").parts["engine"] == 0
    cpu = found("vllm.cpu_kv_cache_gb=2", "vllm.enable_sleep_mode=true", device="cpu")
    assert cpu.parts["engine"] == 4 * cpu.parameters + 2 * 2**30 + ENGINE_BYTES
    assert cpu.phases["update"] > cpu.parts["engine"]  # sleeping changes nothing on a CPU


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


def test_each_setting_moves_its_own_part() -> None:
    def parts(*overrides: str) -> dict[str, int]:
        config = load_config(run_config(votes=8, micro_batch_size=4, kl_coef=0.001), overrides)
        return dict(estimate_memory(config, published(**WIDE)).parts)

    plain = parts()

    def changed(*overrides: str) -> set[str]:
        return {name for name, size in parts(*overrides).items() if size != plain.get(name)}

    assert changed("rl.kl_coef=0") == {"reference"}
    assert changed("model.gradient_checkpointing=true") == {"activations", "heap"}
    assert changed("rl.micro_batch_size=2") == {"activations", "logits", "heap"}
    assert changed("rollout.max_batch_size=8") == {"kv_cache", "sampling"}
    assert changed("phases=[sft, rl]") == {"sft_activations"}
    assert parts("rl.micro_batch_size=2")["logits"] * 2 == plain["logits"]
    assert parts("model.attn_implementation=eager")["activations"] > plain["activations"]


def test_micro_batches_by_tokens_hold_that_many_or_one_sequence() -> None:
    def activations(*overrides: str) -> int:
        config = load_config(run_config(votes=4, micro_batch_size=2, kl_coef=0.0), overrides)
        return estimated(config, WIDE).parts["activations"]  # type: ignore[no-any-return]

    # Prompts and answers have 64 tokens each; a prompt has 4 samples.
    assert activations("rl.micro_batch_tokens=320") == activations("rl.micro_batch_size=4")
    assert activations("rl.micro_batch_tokens=1") == activations("rl.micro_batch_size=1")
    padded = partial(activations, "model.packing=off")
    assert padded("rl.micro_batch_tokens=512") == padded("rl.micro_batch_size=4")


def test_prompts_that_packed_samples_share_count_once() -> None:
    def tokens(*overrides: str) -> float:
        config = load_config(run_config(votes=8, micro_batch_size=8, kl_coef=0.0), overrides)
        one = load_config(run_config(votes=8, micro_batch_size=1, kl_coef=0.0))
        return 128 * estimated(config, WIDE).parts["activations"] / estimated(one, WIDE).parts["activations"]  # type: ignore[no-any-return]

    assert tokens("model.packing=off") == tokens("agent.max_turns=2") == 8 * 128
    assert 64 + 8 * 64 <= tokens() <= 1.15 * (64 + 8 * 64)  # and copies of the prompt's keys and values
    assert tokens("model.attn_implementation=eager") > 8 * 128


def test_large_vocabulary_costs_one_chunk_of_logits_at_most() -> None:
    config = load_config("ttrl_qwen2.5_math_7b", ["rl.micro_batch_size=64"])
    logits = gpu_estimate(config, (152064, 3584, 18944, 28, 28, 4, False)).parts["logits"]
    assert logits <= 4 * 4 * GPU_BLOCK + 2 * LOGIT_BUDGET


def test_built_in_policy_needs_no_download() -> None:
    from skill_ttrl.llm.models.model_config import load_model_config

    config = load_config({"model": {"path": "builtin"}, "phases": ["sft", "rl"], "runtime": {"device": "cpu"}})
    estimate = estimate_memory(config, load_model_config(config.model))
    assert 250_000 < estimate.parameters < 350_000
    assert set(estimate.phases) == {"sample", "update", "sft"}


WIDE_STEP = [
    "rl.micro_batch_size=4096",
    "rl.mini_batch_size=null",
    "rl.prompts_per_step=64",
    "rollout.max_batch_size=16",
]


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
    from skill_ttrl.llm.models.model_config import load_model_config

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
    from skill_ttrl.rl.device import make_accelerator
    from skill_ttrl.rl.learner import LocalLearner
    from skill_ttrl.rl.pack import pack, with_advantages
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
