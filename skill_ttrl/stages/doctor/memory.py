"""Peak memory of a run, from its config and the shape of its model, and what to change where it does not fit.

Sizes are bytes, of one rank. Prompts and completions count at their longest and all gradients as present. What autograd keeps of a
layer is counted from transformers' Llama-like layers (RMSNorm, rotary attention, gated MLP); other layers are close to these.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skill_ttrl.config import BUILTIN, RLConfig, SFTConfig, SkillTTRLConfig
from skill_ttrl.errors import ModelError, RankError, SkillTTRLError
from skill_ttrl.llm.backends import backend_facts
from skill_ttrl.llm.models.load import count_parameters, load_model_config
from skill_ttrl.llm.vllm.plugin.launch import CPU_CACHE_GB
from skill_ttrl.rl.device import device_memory, gpus, out_of_memory, resolve_device, resolve_precision
from skill_ttrl.rl.head import CPU_BLOCK, GPU_BLOCK, MIN_BLOCK_WIDTH
from skill_ttrl.rl.policy import LOGIT_BUDGET
from skill_ttrl.rl.tree import refuse_config
from skill_ttrl.runs.checkpoint import what_is_saved
from skill_ttrl.stages.setup.rules import PROCESS_BYTES, context_parts, planned_ranks

FP32 = 4
CUDA_CONTEXT_BYTES = 800_000_000
"""GPU memory of a CUDA context, its kernels and its libraries' workspaces."""
H100_BYTES = 80_000_000_000
"""Memory of the GPU that a real model is estimated for where this machine has none."""
ENGINE_BYTES = 450_000_000
"""Memory that a vLLM engine adds to a CPU process, apart from its weights and its cache (measured)."""
ASLEEP_BYTES = 1_500_000_000
"""Taken for what a sleeping engine keeps of a GPU (graphs, workspaces). Not measured here."""
EPISODE_TOKEN_BYTES = 70
"""Bytes of one token of a step's episodes in memory, as Python stores numbers, and in the learner's batch of them (measured)."""
LOGIT_COPIES = 4
"""Float32 tensors of the vocabulary's width alive at once: logits, log-softmax, softmax and gradient; or those of sampling."""
HEAP_LIMIT_BYTES = 32 * 1024**2
HEAP_SHARE = 0.75
"""glibc hands freed blocks of more than 32 MiB back at once and keeps smaller ones: of activations and logits made of
such, about this share more stays resident (measured with models of 7 to 46 million parameters: 0.4 to 1.2)."""
SHARDED = ("weights", "gradients", "optimizer", "reference", "critic")
"""Parts that `fsdp` shards, and that `runtime.offload: all` moves to the CPU's memory."""
PHASES = {"sample": "sampling", "update": "update", "sft": "cold start"}


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Memory of one rank on its device, in bytes."""

    device: str
    """`cpu` (resident memory) or `cuda` (memory of the GPU)."""
    parameters: int
    """Numbers in the model, tied ones once, adapters included (a count)."""
    trainable: int
    """Trainable numbers (a count)."""
    parts: Mapping[str, int]
    """`weights gradients optimizer sampler reference critic casts gathered activations logits sampling episodes runtime engine`, and
    `sft_activations` (activations and logits of the cold start)."""
    phases: Mapping[str, int]
    """Peak of each phase: `sample`, `update` and, where the config has it, `sft`."""
    ranks: int
    """Processes that train together."""

    @property
    def peak(self) -> int:
        """The largest phase of one rank."""
        return max(self.phases.values())

    @property
    def on_device(self) -> int:
        """Bytes at the peak on one device: ranks on a CPU share its memory, each GPU has one rank."""
        return self.peak * (self.ranks if self.device == "cpu" else 1)


@dataclass(frozen=True, slots=True)
class _Shape:
    """Sizes of a decoder and how it computes."""

    text: Any
    """The transformers config of the text model."""
    adapters: int
    """Numbers in adapters."""
    compute: int
    """Bytes of a number in the forward pass."""
    stored: int
    """Bytes of a number of the base's weights: those that learn are kept in float32."""
    on_cpu: bool

    @property
    def widths(self) -> tuple[int, int]:
        """Width of all query heads together, and of all key heads."""
        text, heads = self.text, self.text.num_attention_heads
        width = int(getattr(text, "head_dim", None) or text.hidden_size // heads)
        return heads * width, int(getattr(text, "num_key_value_heads", None) or heads) * width

    def layer(self, tokens: int, *, eager: bool) -> int:
        """Bytes that autograd keeps of one layer for one token of a row of so many.

        Two RMSNorms keep 2 D (8 + c); attention its queries, keys, values and outputs, c (3 Q + 2 KV), and eager attention its
        probabilities; the gated MLP c 4 F; adapters inputs of their own, c 3 D.
        """
        text, c, (queries, keys) = self.text, self.compute, self.widths
        attention = c * (3 * queries + 2 * keys) + eager * text.num_attention_heads * tokens * (FP32 + c)
        adapters = c * 3 * text.hidden_size if self.adapters else 0
        return int(2 * text.hidden_size * (2 * FP32 + c) + attention + c * 4 * text.intermediate_size + adapters)


def estimate_memory(
    config: SkillTTRLConfig, model_config: Any, *, device: str | None = None, total: int | None = None
) -> MemoryEstimate:
    """Estimate the memory of training and sampling with this config.

    - weights, gradients, optimizer: 4, 4 and 8 bytes for each number that learns; frozen ones take what the forward pass takes.
    - sampler, reference, critic: further copies under `rl.max_staleness`, `rl.kl_coef` and `rl.critic.model`; casts: autocast's.
    - activations, logits: of one micro-batch; sampling: cache, logits and first pass of `rollout.max_batch_size` rows.
    - gathered: with `fsdp`, what a rank holds of the others' weights while it computes.
    - engine: vLLM in this process, `vllm.gpu_memory_utilization` of a GPU; on a CPU its weights and `CPU_CACHE_GB`.

    Args:
        config: The whole config.
        model_config: The model's transformers config (`llm.model_config`).
        device: `cpu` or `cuda`; None takes what `runtime.device` means on this machine.
        total: bytes of the GPU; None: this machine's, or `H100_BYTES` where it has none.

    Raises:
        ModelError: the device or precision is not to be had here, or the model is of no kind transformers can build.
    """
    on_cpu = (device or resolve_device(config.runtime.device).type) == "cpu"
    parameters, adapters, matrices = count_parameters(model_config, config.model.lora)
    precision: str = config.runtime.precision
    if on_cpu or gpus():
        precision = resolve_precision(precision, resolve_device("cpu" if on_cpu else "cuda"))
    compute = FP32 if precision == "fp32" else 2
    shape = _Shape(model_config.get_text_config(), adapters, compute, compute if adapters else FP32, on_cpu)
    facts, runtime, ranks = backend_facts(config), config.runtime, planned_ranks(config)
    imitates = bool({"sft", "dagger"} & {*config.phases})
    weights = (parameters - adapters) * shape.stored + adapters * FP32
    trainable = adapters or parameters
    bare_base = bool(adapters) and not imitates and config.rl.ref_model_sync_steps is None
    critic = "rl" in config.phases and config.rl.critic is not None and config.rl.critic.model is not None
    parts = {
        "weights": weights,
        "gradients": trainable * FP32,
        "optimizer": 2 * trainable * FP32,
        "sampler": weights if facts.is_copy else 0,
        "reference": trainable * FP32 if config.rl.stops_collapse or (config.rl.kl_coef > 0 and not bare_base) else 0,
        "critic": weights + 3 * trainable * FP32 if critic else 0,
        "casts": matrices * compute if compute < shape.stored else 0,
        **_backward(config, shape, config.rl, model_config),
        **_sampling(config, shape, ranks),
        "runtime": PROCESS_BYTES if on_cpu else CUDA_CONTEXT_BYTES,
        "engine": 0,
    }
    if facts.engine and on_cpu:
        parts["engine"] = (parameters - adapters) * compute + CPU_CACHE_GB * 1024**3 + ENGINE_BYTES
    elif facts.engine:
        total = total or (device_memory("cuda") if gpus() else H100_BYTES)
        parts["engine"] = int(config.vllm.gpu_memory_utilization * total)
    if imitates:
        parts["sft_activations"] = sum(_backward(config, shape, config.sft, model_config).values())
    if runtime.parallel == "fsdp" and ranks > 1:
        parts |= {name: -(-parts[name] // ranks) for name in SHARDED}
        parts |= {"casts": 0, "gathered": parameters * compute}
        if runtime.offload == "all" and not on_cpu:
            parts |= dict.fromkeys(SHARDED, 0)
    phases = _phases(config, parts, on_cpu=on_cpu)
    return MemoryEstimate("cpu" if on_cpu else "cuda", parameters, trainable, parts, phases, ranks)


def _phases(config: SkillTTRLConfig, parts: Mapping[str, int], *, on_cpu: bool) -> dict[str, int]:
    """Peak of each phase. An offloaded optimizer is on the device only while it takes a step, when no activations are."""

    def together(*names: str) -> int:
        return sum(parts.get(name, 0) for name in names)

    kept, offloads = together("optimizer"), config.runtime.offload == "optimizer" and not on_cpu
    fixed = together("weights", "sampler", "reference", "critic", "casts", "runtime", "episodes", "gathered")
    engine = parts["engine"]
    if config.vllm.enable_sleep_mode and not on_cpu:
        engine = min(engine, ASLEEP_BYTES)

    def learning(activations: int) -> int:
        return fixed + parts["gradients"] + (max(kept, activations) if offloads else kept + activations)

    phases = {
        "sample": fixed + (0 if offloads else kept) + together("sampling", "engine"),
        "update": learning(together("activations", "logits"))
        + engine
        + parts["sampling"] * backend_facts(config).is_copy,
    }
    if "sft_activations" in parts:
        phases["sft"] = learning(parts["sft_activations"]) - together("reference", "critic", "episodes")
    return phases


def _backward(
    config: SkillTTRLConfig, shape: _Shape, section: RLConfig | SFTConfig, model_config: Any
) -> dict[str, int]:
    """`activations logits` of a micro-batch: as many sequences as the section says, one sequence at least. Packed samples
    of one prompt share it.
    """
    prompt, answer = longest_turn(config)
    votes, eager = config.rollout.n_samples_per_prompt, config.model.attn_implementation == "eager"
    rows, shares = section.micro_batch_size, False
    if isinstance(section, SFTConfig):
        most = section.batch_size
        if section.batch_tokens is not None:
            rows = max(1, section.batch_tokens // (prompt + answer))
    else:
        most = (section.mini_batch_size or section.prompts_per_step) * votes
        attention = config.model.attn_implementation or "sdpa"
        fits = refuse_config(model_config.get_text_config(), attention) is None
        shares = fits and config.model.packing != "off" and config.agent.max_turns == 1
        most *= 1 if config.agent.context_mode == "episode" else config.agent.max_turns
    rows = min(rows, most)
    tokens, layers = (-(-rows // votes) if shares else rows) * prompt + rows * answer, shape.text.num_hidden_layers
    layer = shape.layer(prompt + answer, eager=eager)
    saved = (layers + 1) * layer
    if config.model.gradient_checkpointing:
        saved = layers * shape.text.hidden_size * shape.stored + 2 * layer
    activations = tokens * (saved + 4 * FP32 * shape.text.hidden_size)
    scored = rows * answer
    numbers = scored * shape.text.vocab_size
    block = min(numbers, max(CPU_BLOCK if shape.on_cpu else GPU_BLOCK, scored * MIN_BLOCK_WIDTH))
    logits = LOGIT_COPIES * FP32 * block + shape.compute * min(numbers, LOGIT_BUDGET)
    small = shape.on_cpu and tokens * shape.text.intermediate_size * shape.compute < HEAP_LIMIT_BYTES
    kept = 1 + HEAP_SHARE * small
    return {"activations": int(kept * activations), "logits": int(kept * logits)}


def _sampling(config: SkillTTRLConfig, shape: _Shape, ranks: int) -> dict[str, int]:
    """`sampling episodes`: the cache, the logits and the first pass of the rows that the learner's own model samples at once, which are
    shared out to the ranks; and on a CPU the tokens of a step's episodes, which lie in the machine's own memory otherwise.
    """
    prompt, answer = longest_turn(config)
    prompts, facts = config.rl.prompts_per_step, backend_facts(config)
    rollouts = prompts * config.rollout.n_votes_per_prompt
    rows = min(config.rollout.max_batch_size, -(-rollouts // ranks)) if facts.is_learner or facts.is_copy else 0
    layers, width = shape.text.num_hidden_layers + 1, shape.widths[1] * (shape.stored + shape.compute)
    cache, logits = layers * rows * (prompt + answer) * width, LOGIT_COPIES * FP32 * rows * shape.text.vocab_size
    first = min(rows, prompts) * prompt * shape.layer(prompt, eager=config.model.attn_implementation == "eager")
    tokens = rollouts * (prompt + answer) * config.agent.max_turns
    return {"sampling": cache + logits + first, "episodes": tokens * EPISODE_TOKEN_BYTES * shape.on_cpu}


def longest_turn(config: SkillTTRLConfig) -> tuple[int, int]:
    """(tokens of the longest prompt, of the longest answer); skills add budgets of their own to both."""
    prompt, answer, *skills = context_parts(config).values()
    return (prompt + skills[0], answer + skills[1]) if skills else (prompt, answer)


def estimate_here(config: SkillTTRLConfig, model_config: Any) -> tuple[MemoryEstimate, int, str]:
    """The estimate, the bytes of its device, and a note where that is no device of this machine.

    A real model is not estimated for a CPU that was not asked for.

    Raises:
        ModelError: see `estimate_memory`.
    """
    on_cpu = config.runtime.device == "cpu" or (config.model.path == BUILTIN and not gpus())
    if on_cpu or gpus():
        kind = "cpu" if on_cpu else None
        return estimate_memory(config, model_config, device=kind), device_memory("cpu" if on_cpu else "cuda"), ""
    estimate = estimate_memory(config, model_config, device="cuda", total=H100_BYTES)
    return estimate, H100_BYTES, f"there is no GPU here: memory is estimated for one of {H100_BYTES / 1e9:.0f} GB"


def memory_advice(config: SkillTTRLConfig, estimate: MemoryEstimate, phase: str, available: int) -> str:
    """The setting to change first where `phase` does not fit into `available` bytes."""
    parts = estimate.parts
    fixed = sum(parts[name] for name in ("weights", "gradients", "optimizer", "sampler", "reference", "runtime"))
    if parts["sampler"] and fixed - parts["sampler"] <= available < fixed:
        return "The copy of the model that samples does not fit: --set rl.max_staleness=0."
    if fixed > available:
        if config.model.lora is not None:
            return "The weights alone do not fit. Use a smaller model."
        return (
            "Weights, gradients and optimizer alone do not fit. Train adapters (--set model.lora.r=16), spread them over more GPUs "
            "(runtime.parallel=fsdp and --nproc), or use a smaller model."
        )
    if phase == "sample":
        if parts["engine"]:
            return "Leave more memory to the learner: a lower vllm.gpu_memory_utilization."
        return f"Sample fewer rows at once: --set rollout.max_batch_size={max(1, config.rollout.max_batch_size // 2)}."
    if parts["engine"] and estimate.device == "cuda" and not config.vllm.enable_sleep_mode:
        return "Let the engine release its memory while the learner computes: --set vllm.enable_sleep_mode=true."
    if not config.model.gradient_checkpointing:
        return "Recompute activations: --set model.gradient_checkpointing=true."
    section = "sft" if phase == "sft" else "rl"
    return f"Use smaller batches: --set {section}.micro_batch_size=1; the result stays the same."


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
        first_line = str(error).strip().partition("\n")[0].rstrip(".")
        raise ModelError(
            f"Out of memory{where} ({PHASES[phase]}): {first_line}. {_estimated(config, phase)} {what_is_saved(run)}"
        ) from error


def _estimated(config: SkillTTRLConfig, phase: str) -> str:
    """The estimate of this phase, its largest parts, and what to change."""
    try:
        estimate = estimate_memory(config, load_model_config(config.model))
    except SkillTTRLError as error:
        return f"Its memory cannot be estimated: {error}"
    available = device_memory(str(resolve_device(config.runtime.device)))
    largest = sorted(estimate.parts.items(), key=lambda part: -part[1])[:4]
    parts = ", ".join(f"{name} {gigabytes(size)}" for name, size in largest)
    size = gigabytes(estimate.phases.get(phase, estimate.peak))
    return f"The estimate is {size} (largest parts: {parts}). {memory_advice(config, estimate, phase, available)}"
