"""A rough estimate of a run's peak memory, from its config and the shape of its model, and what to change where it does not fit.

Sizes are bytes, of one rank. Prompts and completions count at their longest. The estimate is good to a factor of about 1.5.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skill_ttrl.config import BUILTIN, SkillTTRLConfig
from skill_ttrl.errors import ModelError, RankError, SkillTTRLError
from skill_ttrl.llm.backends import backend_facts
from skill_ttrl.llm.models.load import count_parameters, load_model_config
from skill_ttrl.rl.device import device_memory, gpus, out_of_memory, resolve_device, resolve_precision
from skill_ttrl.runs.checkpoint import what_is_saved
from skill_ttrl.stages.setup.rules import PROCESS_BYTES, context_parts, planned_ranks

FP32 = 4
CUDA_CONTEXT_BYTES = 800_000_000
"""GPU memory of a CUDA context, its kernels and its libraries' workspaces."""
H100_BYTES = 80_000_000_000
"""Memory of the GPU that a real model is estimated for where this machine has none."""
LOGITS = 4
"""Float32 tensors of the vocabulary's width alive at once: logits, log-softmax, softmax and gradient; or those of sampling."""
LAYER = 34
"""Numbers that autograd keeps of a layer for each token, in hidden sizes: norms, attention and the gated MLP of a Llama-like layer."""
STATE = ("weights", "gradients", "optimizer", "reference", "critic")
"""Parts that `fsdp` shards, and that `runtime.offload` moves to the CPU's memory."""
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
    """`weights gradients optimizer sampler reference critic gathered activations sampling runtime engine`; `activations` are of one
    micro-batch, its logits included."""
    ranks: int
    """Processes that train together."""

    @property
    def phases(self) -> dict[str, int]:
        """Peak while sampling and while updating."""
        both = sum(size for name, size in self.parts.items() if name not in ("sampling", "activations", "gradients"))
        return {
            "sample": both + self.parts["sampling"],
            "update": both + self.parts["gradients"] + self.parts["activations"],
        }

    @property
    def peak(self) -> int:
        """The larger of both."""
        return max(self.phases.values())

    @property
    def on_device(self) -> int:
        """Bytes at the peak on one device: ranks on a CPU share its memory, each GPU has one rank."""
        return self.peak * (self.ranks if self.device == "cpu" else 1)


def estimate_memory(config: SkillTTRLConfig, model_config: Any, *, device: str | None = None) -> MemoryEstimate:
    """Estimate the memory of training and sampling with this config.

    Args:
        config: The whole config.
        model_config: The model's transformers config (`llm.models.load.load_model_config`).
        device: `cpu` or `cuda`; None takes what `runtime.device` means on this machine.

    Raises:
        ModelError: the device or precision is not to be had here, or the model is of no kind transformers can build.
    """
    on_cpu = (device or resolve_device(config.runtime.device).type) == "cpu"
    parameters, adapters, matrices = count_parameters(model_config, config.model.lora)
    precision: str = config.runtime.precision
    if on_cpu or gpus():
        precision = resolve_precision(precision, resolve_device("cpu" if on_cpu else "cuda"))
    compute = FP32 if precision == "fp32" else 2
    stored = compute if adapters else FP32  # weights that learn are kept in float32
    facts, rl, ranks, text = backend_facts(config), config.rl, planned_ranks(config), model_config.get_text_config()
    weights, trainable = (parameters - adapters) * stored + adapters * FP32, adapters or parameters
    casts = matrices * compute if compute < stored else 0
    critic = config.reinforces and rl.critic is not None and rl.critic.model is not None
    parts = {
        "weights": weights + casts,
        "gradients": trainable * FP32,
        "optimizer": 2 * trainable * FP32,
        "sampler": weights if facts.is_copy else 0,
        "reference": trainable * FP32 if rl.stops_collapse or rl.kl_coef > 0 else 0,
        "critic": weights + 3 * trainable * FP32 if critic else 0,
        "activations": _activations(config, text, compute),
        "sampling": _sampling(config, text, compute, ranks) if facts.is_learner or facts.is_copy else 0,
        "runtime": PROCESS_BYTES if on_cpu else CUDA_CONTEXT_BYTES,
        "engine": 0,
    }
    if facts.engine and not config.vllm.enable_sleep_mode:
        total = device_memory("cuda") if gpus() else H100_BYTES
        share = int(config.vllm.gpu_memory_utilization * total)
        parts["engine"] = weights + PROCESS_BYTES if on_cpu else share
    if config.runtime.parallel == "fsdp" and ranks > 1:
        parts |= {name: -(-parts[name] // ranks) for name in STATE} | {"gathered": parameters * compute}
    if config.runtime.offload == "all" and not on_cpu:
        parts |= dict.fromkeys(STATE, 0)
    elif config.runtime.offload == "optimizer" and not on_cpu:
        parts["optimizer"] = 0
    return MemoryEstimate("cpu" if on_cpu else "cuda", parameters, trainable, parts, ranks)


def _activations(config: SkillTTRLConfig, text: Any, compute: int) -> int:
    """Bytes of a micro-batch of the largest of the phases: what autograd keeps, and the logits of the answers."""
    (prompt, answer), rl, sft = longest_turn(config), config.rl, config.sft
    rows = 0
    if config.votes:
        most = (rl.mini_batch_size or rl.prompts_per_step) * config.rollout.n_samples_per_prompt
        rows = min(rl.micro_batch_size, most)
    if config.imitates or not rows:
        limit = sft.batch_tokens
        rows = max(rows, min(sft.micro_batch_size, sft.batch_size) if limit is None else limit // (prompt + answer))
    width, layers = text.hidden_size, text.num_hidden_layers
    layer = (LAYER - 12) * width + 4 * text.intermediate_size if text.intermediate_size else LAYER * width
    kept = layers * width + 2 * layer if config.model.gradient_checkpointing else (layers + 1) * layer
    return int(rows * (prompt + answer) * kept * compute + rows * answer * text.vocab_size * LOGITS * FP32)


def _sampling(config: SkillTTRLConfig, text: Any, compute: int, ranks: int) -> int:
    """Bytes of the cache and the logits of the rows that a rank samples at once."""
    prompt, answer = longest_turn(config)
    rollouts = config.rl.prompts_per_step * config.rollout.n_votes_per_prompt
    rows = min(config.rollout.max_batch_size, -(-rollouts // ranks))
    heads = text.num_attention_heads
    keys = text.hidden_size // heads * int(getattr(text, "num_key_value_heads", None) or heads)
    each = (prompt + answer) * 2 * keys * text.num_hidden_layers * compute + text.vocab_size * LOGITS * FP32
    return int(rows * each)


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
    estimate = estimate_memory(config, model_config, device="cuda")
    return estimate, H100_BYTES, f"there is no GPU here: memory is estimated for one of {H100_BYTES / 1e9:.0f} GB"


def memory_advice(config: SkillTTRLConfig, estimate: MemoryEstimate, phase: str, available: int) -> str:
    """The setting to change first where `phase` does not fit into `available` bytes."""
    parts = estimate.parts
    if sum(parts[name] for name in (*STATE, "sampler", "runtime")) > available:
        if parts["sampler"]:
            return "The copy of the model that samples may be what is too much: --set rl.max_staleness=0."
        if config.model.lora is not None:
            return "The weights alone do not fit. Use a smaller model."
        return (
            "Weights, gradients and optimizer alone do not fit. Train adapters (--set model.lora.r=16), spread them over more GPUs "
            "(runtime.parallel=fsdp and --nproc), or use a smaller model."
        )
    if parts["engine"]:
        return "Leave more memory to the learner: a lower vllm.gpu_memory_utilization, or vllm.enable_sleep_mode=true."
    if phase == "sample":
        return f"Sample fewer rows at once: --set rollout.max_batch_size={max(1, config.rollout.max_batch_size // 2)}."
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
        ModelError: in its place, with the estimate.
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
    """The estimate, its largest parts, and what to change."""
    try:
        estimate = estimate_memory(config, load_model_config(config.model))
    except SkillTTRLError as error:
        return f"Its memory cannot be estimated: {error}"
    available = device_memory(str(resolve_device(config.runtime.device)))
    largest = sorted(estimate.parts.items(), key=lambda part: -part[1])[:4]
    parts = ", ".join(f"{name} {gigabytes(size)}" for name, size in largest)
    size = gigabytes(estimate.phases.get(phase, estimate.peak))
    return f"The estimate is {size} (largest parts: {parts}). {memory_advice(config, estimate, phase, available)}"
