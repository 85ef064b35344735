"""Peak memory of a run, part by part, from its config and the shape of its model, and what to change where it does not fit.

Sizes are bytes. The formulas of learner and sampler are in `rl.memory`; this module chooses those that a config needs. With `ddp`
each rank holds all weights and computes its share of the rows. With `fsdp` weights, gradients, optimizer and reference are sharded,
and each rank gathers what it computes with: a layer at a time, or everything to sample with.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skill_ttrl.config import BUILTIN, RLConfig, SFTConfig, SkillTTRLConfig
from skill_ttrl.errors import ConfigError, ModelError, RankError, SkillTTRLError
from skill_ttrl.llm.backends import backend_facts
from skill_ttrl.llm.models.model_config import load_model_config
from skill_ttrl.rl.device import device_memory, gpus, resolve_device, resolve_precision
from skill_ttrl.rl.forward.tree import refuse_config
from skill_ttrl.rl.memory import (
    FP32,
    ComputeSettings,
    DecoderShape,
    backward_bytes,
    read_shape,
    sampling_bytes,
    weight_bytes,
)
from skill_ttrl.rl.out_of_memory import out_of_memory
from skill_ttrl.rl.parallel.environment import Strategy, strategy
from skill_ttrl.runs.checkpoint import what_is_saved
from skill_ttrl.stages.setup.ranks import PROCESS_BYTES, planned_ranks

CUDA_CONTEXT_BYTES = 800_000_000
"""GPU memory of a CUDA context, its kernels and its libraries' workspaces."""
H100_BYTES = 80_000_000_000
"""Memory of the GPU that a real model is estimated for where this machine has none."""
SHARDED = ("weights", "gradients", "optimizer", "reference", "critic")
"""Parts that `fsdp` shards, and that `runtime.param_offload` moves to the CPU's memory."""
ENGINE_BYTES = 450_000_000
"""Memory that a vLLM engine adds to a CPU process, apart from its weights and its cache (measured with a toy model: 2.0 GB in all, with a
cache of 1 GiB, where the process without an engine took 0.5)."""
ASLEEP_BYTES = 1_500_000_000
"""Taken for what a sleeping engine keeps of a GPU (graphs, workspaces). Not measured here."""
EPISODE_TOKEN_BYTES = 43
"""Bytes of one token of a step's prompt or answer while its episode is in memory, as Python stores numbers (measured with prompts of
500 tokens and answers of 20: 42.5)."""
BATCH_TOKEN_BYTES = 27
"""Bytes of one token in the learner's batch while that is made (measured: 26.6)."""


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Memory of one rank on its device, in bytes."""

    device: str
    """`cpu` (resident memory) or `cuda` (memory of the GPU)."""
    precision: str
    """Of the forward pass: `fp32`, `bf16` or `fp16`."""
    parameters: int
    """Numbers in the model, tied ones once, adapters included (a count)."""
    trainable: int
    """Trainable numbers (a count)."""
    parts: Mapping[str, int]
    """`weights gradients optimizer sampler reference casts activations logits heap kv_cache sampling episodes batch runtime engine`, and
    `sft_activations` (activations, logits and heap of the cold start)."""
    phases: Mapping[str, int]
    """Peak of each phase: `sample`, `update`, where the config has it `sft`, and `step` where the optimizer's state is offloaded."""
    ranks: int = 1
    """Processes that train together; all figures are of the fullest, rank 0."""
    parallel: Strategy = "alone"
    """How they hold the policy."""

    @property
    def peak(self) -> int:
        """The largest phase of one rank."""
        return max(self.phases.values())

    @property
    def on_device(self) -> int:
        """Bytes at the peak on one device: ranks on a CPU share its memory, each GPU has one rank."""
        return self.peak * (self.ranks if self.device == "cpu" else 1)


def estimate_memory(
    config: SkillTTRLConfig,
    model_config: Any,
    *,
    device: str | None = None,
    precision: str | None = None,
    total: int | None = None,
) -> MemoryEstimate:
    """Estimate the memory of training and sampling with this config.

    - weights, gradients, optimizer, casts: see `weight_bytes`; Muon keeps 4 for each number of a hidden matrix.
    - sampler: the copy of the model that `hf` samples with under `rl.max_staleness`; then it samples while the learner learns.
    - reference: a copy of the trainable weights where `rl.kl_coef` is above 0; adapters need none until a cold start or a
      refresh.
    - critic: weights, gradients and optimizer of `rl.critic.model`, which is taken to be as large as the policy.
    - activations, logits, heap: see `backward_bytes`; prompts that packed samples share count once.
    - kv_cache, sampling: see `sampling_bytes`; the `hf` backend's, others sample elsewhere.
    - episodes, batch: on a CPU, the tokens of a step's episodes, each turn of `agent.max_turns` a prompt and an answer of its
      own, until they are learned from, and the learner's batch of them. With a GPU they lie in the machine's own memory.
    - gathered, gathered_to_sample: see `_per_rank`; several ranks, of which each holds a share of what is above.
    - engine: of vLLM in this process. On a GPU `vllm.gpu_memory_utilization` of all of it, weights and cache included; while
      the learner computes too, unless `vllm.enable_sleep_mode`. On a CPU, where sleeping changes nothing, its weights and
      `vllm.cpu_kv_cache_gb`.

    Args:
        config: The whole config.
        model_config: The model's transformers config (`llm.model_config`).
        device: `cpu` or `cuda`; None takes what `runtime.device` means on this machine.
        precision: `fp32`, `bf16` or `fp16`; None takes what `runtime.precision` means on that device.
        total: bytes of the GPU; None: this machine's, or `H100_BYTES` where it has none.

    Raises:
        ModelError: the device or precision is not to be had here, or the model is of no kind transformers can build.
    """
    kind = device or resolve_device(config.runtime.device).type
    precision = precision or _precision(config, kind)
    shape = read_shape(model_config, config.model.lora)
    how = ComputeSettings(
        compute=FP32 if precision == "fp32" else 2,
        adapters=config.model.lora is not None,
        gradient_checkpointing=config.model.gradient_checkpointing,
        eager_attention=config.model.attn_implementation == "eager",
        on_cpu=kind == "cpu",
        packed=_packs(config, model_config),
    )
    ranks = planned_ranks(config)
    parallel = _parallel(config, ranks, on_gpu=not how.on_cpu)
    parts = _parts(config, shape, how, ranks, _engine(config, shape, how, total))
    parts = _per_rank(config, parts, shape, how, ranks, parallel)
    phases = _phases(config, shape, how, parts)
    return MemoryEstimate(kind, precision, shape.parameters, shape.trainable, parts, phases, ranks, parallel)


def estimate_here(config: SkillTTRLConfig, model_config: Any) -> tuple[MemoryEstimate, int, str]:
    """The estimate, the bytes of its device, and a note where that is no device of this machine.

    A real model is not estimated for a CPU that was not asked for.

    Raises:
        ModelError: see `estimate_memory`.
    """
    if gpus() and config.runtime.device != "cpu":
        return estimate_memory(config, model_config), device_memory("cuda"), ""
    if config.runtime.device == "cpu" or config.model.path == BUILTIN:
        return estimate_memory(config, model_config, device="cpu"), device_memory("cpu"), ""
    precision = "bf16" if config.runtime.precision == "auto" else None
    estimate = estimate_memory(config, model_config, device="cuda", precision=precision, total=H100_BYTES)
    return estimate, H100_BYTES, f"there is no GPU here: memory is estimated for one of {H100_BYTES / 1e9:.0f} GB"


def _per_rank(
    config: SkillTTRLConfig,
    parts: Mapping[str, int],
    shape: DecoderShape,
    how: ComputeSettings,
    ranks: int,
    parallel: Strategy,
) -> dict[str, int]:
    """Parts of one rank; `gathered` is of weights while gradients are computed, `gathered_to_sample` while it samples, and
    `optimizer_in_step` the optimizer's state while it takes a step, where that is elsewhere at other times.

    Gathered while gradients are computed: what is in no layer (embedding, head), two layers, of which one is fetched ahead, and a
    layer's gradient, computed and summed up in float32.
    """
    found, runtime = dict(parts), config.runtime
    if parallel == "fsdp":
        layer = shape.matrices // shape.layers
        outside = shape.parameters - shape.adapters - shape.matrices
        found |= {name: -(-parts[name] // ranks) for name in SHARDED}
        found["casts"] = 0  # weights are gathered as the forward pass takes them
        found["gathered"] = (outside + 2 * layer) * how.compute + layer * (how.compute + FP32)
        is_learner = backend_facts(config).is_learner
        found["gathered_to_sample"] = shape.parameters * how.compute if is_learner else found["gathered"]
        if runtime.param_offload and not how.on_cpu:
            found |= dict.fromkeys(SHARDED, 0)
    if runtime.optimizer_offload and not how.on_cpu and found["optimizer"]:
        found |= {"optimizer": 0, "optimizer_in_step": found["optimizer"]}
    return found


def _parts(
    config: SkillTTRLConfig, shape: DecoderShape, how: ComputeSettings, ranks: int, engine: int
) -> dict[str, int]:
    """Bytes of each part, before it is spread over ranks."""
    weights = weight_bytes(shape, how)
    parts = {
        **{name: weights[name] for name in ("weights", "gradients", "optimizer")},
        "sampler": weights["weights"] if backend_facts(config).is_copy else 0,
        "reference": shape.trainable * FP32 if _keeps_reference(config) else 0,
        "critic": sum(weights.values()) if _has_critic_model(config) else 0,
        "casts": weights["casts"],
        **_backward(config, shape, how, config.rl),
        **_samples(config, shape, how, ranks),
        "runtime": PROCESS_BYTES if how.on_cpu else CUDA_CONTEXT_BYTES,
        "engine": engine,
    }
    if {"sft", "dagger"} & {*config.phases}:
        parts["sft_activations"] = sum(_backward(config, shape, how, config.sft).values())
    return parts


def _parallel(config: SkillTTRLConfig, ranks: int, *, on_gpu: bool) -> Strategy:
    """How the ranks hold the policy; `alone` where the run will be refused (`check_ranks`)."""
    try:
        return strategy(config.runtime, ranks, on_gpu=on_gpu)
    except ConfigError:
        return "alone"


def _phases(
    config: SkillTTRLConfig, shape: DecoderShape, how: ComputeSettings, parts: Mapping[str, int]
) -> dict[str, int]:
    """Peak of each phase."""

    def together(*names: str) -> int:
        return sum(parts.get(name, 0) for name in names)

    def optimizer_of(kind: str) -> int:
        # Muon keeps one number for each weight of a hidden matrix, AdamW two.
        muon = kind == "muon" and not how.adapters
        return round(together("optimizer") * (1 - shape.matrices / (2 * shape.parameters) if muon else 1))

    fixed = together("weights", "sampler", "reference", "critic", "casts", "runtime")
    optimizer = optimizer_of(config.rl.optimizer if "rl" in config.phases else "adamw")
    sleeps = config.vllm.enable_sleep_mode and not how.on_cpu
    engine = min(parts["engine"], ASLEEP_BYTES) if sleeps else parts["engine"]
    phases = {
        "sample": fixed + optimizer + together("kv_cache", "sampling", "episodes", "engine", "gathered_to_sample"),
        "update": fixed
        + optimizer
        + together("gradients", "activations", "logits", "heap", "episodes", "batch", "gathered")
        + together("kv_cache", "sampling") * backend_facts(config).is_copy
        + engine,
    }
    if "optimizer_in_step" in parts:
        phases["step"] = fixed + together("gradients", "optimizer_in_step", "engine")
    if {"sft", "dagger"} & {*config.phases}:
        fixed += optimizer_of(config.sft.optimizer) - together("reference", "critic")
        phases["sft"] = fixed + together("gradients", "sft_activations", "gathered")
    return phases


def _has_critic_model(config: SkillTTRLConfig) -> bool:
    return "rl" in config.phases and config.rl.critic is not None and config.rl.critic.model is not None


def _keeps_reference(config: SkillTTRLConfig) -> bool:
    """The reference is a copy; without a cold start or a refresh adapters have the bare base instead."""
    bare_base = config.model.lora is not None and not {"sft", "dagger"} & {*config.phases}
    return config.rl.kl_coef > 0 and not (bare_base and config.rl.ref_model_sync_steps is None)


def _packs(config: SkillTTRLConfig, model_config: Any) -> bool:
    """True if the learner will pack, as far as a config tells."""
    attention = config.model.attn_implementation or "sdpa"
    return config.model.packing != "off" and refuse_config(model_config.get_text_config(), attention) is None


def _backward(
    config: SkillTTRLConfig, shape: DecoderShape, how: ComputeSettings, section: RLConfig | SFTConfig
) -> dict[str, int]:
    """Of a micro-batch of as many sequences or tokens as the section says, one sequence at least, and no more than a mini-batch has.

    Packed samples of one prompt share it; turns of an episode have prompts of their own. With `agent.context_mode: episode` its last prompt and
    answer are all of it.
    """
    prompt, answer = longest_turn(config)
    rows, limit, sampled = section.micro_batch_size, None, config.rollout.max_new_tokens
    shares, entropy = False, False
    if isinstance(section, SFTConfig):
        most, limit = section.batch_size if section.batch_tokens is None else rows, section.batch_tokens
    else:
        groups = section.mini_batch_size or section.prompts_per_step
        turns = config.agent.max_turns
        most = groups * config.rollout.n_samples_per_prompt * _items_of_episode(config)
        sampled = min(sampled * turns // _items_of_episode(config), prompt + answer)
        limit, entropy = section.micro_batch_tokens, section.entropy_coef > 0
        shares = how.packed and config.agent.max_turns == 1
    if limit is not None:
        rows = max(1, (limit - prompt) // answer if shares else limit // (prompt + answer))
    rows = min(rows, most)
    prompts = math.ceil(rows / config.rollout.n_samples_per_prompt) if shares else rows
    return backward_bytes(
        shape,
        how,
        tokens=prompts * prompt + rows * answer,
        answer_tokens=rows * sampled,
        longest=prompt + answer,
        repeated_tokens=(rows - prompts) * prompt,
        entropy=entropy,
    )


def _samples(config: SkillTTRLConfig, shape: DecoderShape, how: ComputeSettings, ranks: int) -> dict[str, int]:
    """`kv_cache sampling episodes batch`; the rows that are sampled are shared out to the ranks."""
    prompt, answer = longest_turn(config)
    prompts, rollouts = config.rl.prompts_per_step, config.rl.prompts_per_step * config.rollout.n_votes_per_prompt
    sampling = {"kv_cache": 0, "sampling": 0}
    facts = backend_facts(config)
    if facts.is_learner or facts.is_copy:
        rows = min(config.rollout.max_batch_size, -(-rollouts // ranks))
        sampling = sampling_bytes(
            shape, how, rows=rows, prompts=min(rows, prompts), prompt_tokens=prompt, tokens=prompt + answer
        )
    longest = rollouts * (prompt + answer) * how.on_cpu
    return sampling | {
        "episodes": longest * config.agent.max_turns * EPISODE_TOKEN_BYTES,
        "batch": longest * _items_of_episode(config) * BATCH_TOKEN_BYTES,
    }


def _items_of_episode(config: SkillTTRLConfig) -> int:
    """Sequences that the learner makes of an episode: one, or one for each turn."""
    return 1 if config.agent.context_mode == "episode" else config.agent.max_turns


def longest_turn(config: SkillTTRLConfig) -> tuple[int, int]:
    """(tokens of the longest prompt, of the longest answer); skills add budgets of their own to both."""
    prompt, answer = config.data.max_prompt_tokens, config.rollout.max_new_tokens
    if config.skills is not None and config.skills.enabled:
        prompt += config.skills.prompt_max_tokens if config.skills.prompt_top_k else 0
        answer += config.skills.max_retrievals * config.skills.retrieval_max_tokens
    return prompt, answer


def _engine(config: SkillTTRLConfig, shape: DecoderShape, how: ComputeSettings, total: int | None) -> int:
    """Bytes of a vLLM engine in this process; 0 without one."""
    if not backend_facts(config).engine:
        return 0
    if how.on_cpu:
        number = {"auto": how.compute, "float32": FP32}.get(config.vllm.dtype, 2)
        return (shape.parameters - shape.adapters) * number + config.vllm.cpu_kv_cache_gb * 1024**3 + ENGINE_BYTES
    total = total or (device_memory("cuda") if gpus() else H100_BYTES)
    return int(config.vllm.gpu_memory_utilization * total)


def _precision(config: SkillTTRLConfig, kind: str) -> str:
    name = config.runtime.precision
    if kind == "cuda" and not gpus():  # planning for a GPU that is elsewhere
        return "bf16" if name == "auto" else name
    return resolve_precision(name, resolve_device(kind))


def memory_advice(config: SkillTTRLConfig, estimate: MemoryEstimate, phase: str, available: int) -> str:
    """The setting to change first where `phase` does not fit into `available` bytes."""
    parts = estimate.parts
    fixed = sum(parts[name] for name in ("weights", "gradients", "optimizer", "sampler", "reference", "runtime"))
    if parts["sampler"] and fixed - parts["sampler"] <= available < fixed:
        return "The copy of the model that samples does not fit: --set rl.max_staleness=0."
    if fixed > available:
        if config.model.lora is None:
            return (
                "Weights, gradients and optimizer alone do not fit. Train adapters (--set model.lora.r=16), spread them over more GPUs "
                "(runtime.parallel=fsdp and --nproc), or take a smaller model."
            )
        return "The weights alone do not fit. Take a smaller model."
    if parts["engine"] and estimate.device == "cuda":
        if phase == "sample":
            return "Leave the learner more: a lower vllm.gpu_memory_utilization."
        if not config.vllm.enable_sleep_mode:
            return "Let the engine give its memory back while the learner computes: --set vllm.enable_sleep_mode=true."
    if phase == "sample" and not parts["engine"]:
        fewer = max(1, config.rollout.max_batch_size // 2)
        return f"Sample fewer rows at once: --set rollout.max_batch_size={fewer}."
    if phase == "step":
        return "The optimizer's state does not fit: spread it over more GPUs (runtime.parallel=fsdp and --nproc)."
    if not config.model.gradient_checkpointing:
        return "Recompute activations: --set model.gradient_checkpointing=true."
    if phase != "sft" and config.rl.micro_batch_tokens is not None:
        fewer = max(1, config.rl.micro_batch_tokens // 2)
        return f"Take fewer tokens at once: --set rl.micro_batch_tokens={fewer}; the result stays the same."
    section = "sft" if phase == "sft" else "rl"
    return f"Take fewer sequences at once: --set {section}.micro_batch_size=1; the result stays the same."


def gigabytes(size: int) -> str:
    """A size in GB or MB."""
    return f"{size / 1e9:.1f} GB" if size >= 1e8 else f"{size / 1e6:.0f} MB"


@contextmanager
def explaining_memory(config: SkillTTRLConfig, run: Path) -> Iterator[None]:
    """Turn an allocation that failed, here or on another rank, into an error that names the setting to change.

    Args:
        config: The run's.
        run: Its folder.

    Raises:
        ModelError: in its place, with the estimate of the phase it happened in.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if isinstance(error, RankError):
            phase, where = error.out_of_memory, f" on rank {error.rank}"
        else:
            phase, where = out_of_memory(error), ""
        if phase is None:
            raise
        first_line = str(error).strip().partition("\n")[0]
        raise ModelError(
            f"Out of memory{where} ({NAMES[phase]}): {first_line.rstrip('.')}. {_estimated(config, phase)} "
            f"{what_is_saved(run)}"
        ) from error


NAMES = {"sample": "sampling", "update": "update", "sft": "cold start"}


def _estimated(config: SkillTTRLConfig, phase: str) -> str:
    """The estimate of this phase, its largest parts, and what to change."""
    try:
        estimate = estimate_memory(config, load_model_config(config.model))
    except SkillTTRLError as error:
        return f"There is no estimate of what it takes: {error}"
    available = device_memory(str(resolve_device(config.runtime.device)))
    largest = sorted(estimate.parts.items(), key=lambda part: -part[1])[:4]
    parts = ", ".join(f"{name} {gigabytes(size)}" for name, size in largest)
    size = estimate.phases.get(phase, estimate.peak)
    return (
        f"By the estimate it takes {gigabytes(size)} at most (largest parts of a run: {parts}). "
        f"{memory_advice(config, estimate, phase, available)}"
    )
