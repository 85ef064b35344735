"""What a run will need in memory, part by part, from the config alone: no weights are loaded.

Every formula is an upper bound of the steady state: all prompts and completions at their longest, all gradients present,
the optimiser's state filled. Sizes are bytes. The parts that depend on the code around them (how many copies of the
logits live at once, what autograd keeps of a layer) are counted from this package's learner and sampler and from
transformers' Llama-like layers (RMSNorm, rotary attention, gated MLP); other layers are close to these.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from skill_ttrl.config import LoraConfig, SkillTTRLConfig
from skill_ttrl.errors import ModelError
from skill_ttrl.llm.backends import backend_facts
from skill_ttrl.rl.device import resolve_device, resolve_precision
from skill_ttrl.rl.policy import LOGIT_BUDGET

FP32 = 4
PROCESS_BYTES = 450_000_000
"""Resident memory of a CPU process that has imported torch, transformers, accelerate and peft and computed a little."""
CUDA_CONTEXT_BYTES = 800_000_000
"""What a CUDA context, its kernels and its libraries' workspaces take of a GPU."""
PLANNED_GPU_BYTES = 24_000_000_000
"""Size of the GPU that is planned for where this machine has none."""
ENGINE_BYTES = 450_000_000
"""What a vLLM engine adds to a CPU process beside its weights and its cache (measured with a toy model: 2.0 GB in all, with a
cache of 1 GiB, where the process without an engine took 0.5)."""
ASLEEP_BYTES = 1_500_000_000
"""Taken for what a sleeping engine keeps of a GPU (graphs, workspaces). Not measured here."""
HEAP_LIMIT_BYTES = 32 * 1024**2
HEAP_SHARE = 0.75
"""glibc hands freed blocks of more than 32 MiB back at once and keeps smaller ones: of activations and logits made of
such, about this share more stays resident (measured with models of 7 to 46 million parameters: 0.4 to 1.2)."""
LOGIT_COPIES = 4
"""Float32 (rows, vocabulary) tensors alive at once: in the loss, log-softmax and three gradients; in sampling, the
logits, the tempered ones, their log-softmax and the probabilities."""

EPISODE_TOKEN_BYTES = 43
"""What one token of a step's prompt or answer takes while its episode is kept, as Python keeps numbers (measured with prompts of
500 tokens and answers of 20: 42.5)."""
BATCH_TOKEN_BYTES = 27
"""What it takes in the learner's batch, while that is made (measured: 26.6)."""


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Memory of one process on its device, in bytes."""

    device: str
    """`cpu` (resident memory) or `cuda` (memory of the GPU)."""
    precision: str
    """Of the forward pass: `fp32`, `bf16` or `fp16`."""
    parameters: int
    """Numbers in the model, tied ones once, adapters included (a count)."""
    trainable: int
    """Those that learn (a count)."""
    parts: Mapping[str, int]
    """`weights gradients optimizer reference casts activations logits heap kv_cache sampling episodes batch runtime engine`, and
    `sft_activations` (activations, logits and heap of the cold start)."""
    phases: Mapping[str, int]
    """Peak of each phase: `sample`, `update` and, where the config has it, `sft`."""
    engine_rows: float = 0.0
    """Sequences of the longest length whose keys and values fit into the engine's share; 0 without an engine."""

    @property
    def peak(self) -> int:
        """The largest phase."""
        return max(self.phases.values())


@dataclass(frozen=True, slots=True)
class _Shape:
    """Sizes of a decoder, read from its config and from a model of it without storage."""

    layers: int
    hidden: int
    intermediate: int
    query: int
    """Width of all query heads together."""
    key_value: int
    """Width of all key heads together; the value heads have the same."""
    heads: int
    vocabulary: int
    parameters: int
    matrices: int
    """Numbers in linear layers other than the head."""
    adapters: int


def estimate_memory(
    config: SkillTTRLConfig,
    model_config: Any,
    *,
    device: str | None = None,
    precision: str | None = None,
    total: int | None = None,
) -> MemoryEstimate:
    """Memory that training and sampling with this config need at their peaks.

    - weights: parameters x 4, or x 2 where a frozen base is kept in bf16 or fp16 under adapters.
    - gradients: trainable x 4. optimizer: AdamW trainable x 8; Muon keeps 4 for each number of a hidden matrix.
    - reference: a copy of the trainable weights where `rl.kl_coef` is above 0; adapters need none until a cold start or a
      refresh.
    - casts: 2 for each number of a linear layer where fp32 weights meet a bf16 or fp16 forward.
    - activations: see `layer_bytes_per_token`; all layers, or their inputs and one layer with gradient checkpointing,
      and once more one layer for the gradients that flow back.
    - logits: `LOGIT_COPIES` x 4 x rows x vocabulary, rows bounded by the learner's chunks.
    - heap: on a CPU, freed memory that the C library keeps, see `HEAP_SHARE`.
    - kv_cache: rows x tokens x layers x width of keys and values, and one layer more while it is extended.
    - sampling: `LOGIT_COPIES` x 4 x rows x vocabulary, and one layer of the prompts' first pass. This and kv_cache are the
      `hf` backend's; others sample elsewhere.
    - episodes, batch: on a CPU, the tokens of a step's episodes, each turn of `agent.max_turns` a prompt and an answer of its
      own, until they are learned from, and the learner's batch of them. With a GPU they lie in the machine's own memory.
    - engine: of vLLM in this process. On a GPU `vllm.gpu_memory_utilization` of all of it, weights and cache included; while
      the learner computes too, unless `vllm.sleep`. On a CPU, where sleeping changes nothing, its weights and
      `vllm.cpu_kv_cache_gb`.

    Args:
        config: The whole config.
        model_config: The model's transformers config (`llm.model_config`).
        device: `cpu` or `cuda`; None takes what `runtime.device` means on this machine.
        precision: `fp32`, `bf16` or `fp16`; None takes what `runtime.precision` means on that device.
        total: bytes of the GPU; None: this machine's, or `PLANNED_GPU_BYTES` where it has none.

    Raises:
        ModelError: the device or precision is not to be had here, or the model is of no kind transformers can build.
    """
    kind = device or resolve_device(config.runtime.device).type
    precision = precision or _precision(config, kind)
    compute = FP32 if precision == "fp32" else 2
    lora = config.model.lora
    stored = compute if lora is not None else FP32
    shape = _shape(model_config, lora)
    trainable = shape.adapters or shape.parameters
    prompt, answer = longest_turn(config)
    longest = prompt + answer
    tries = config.rl.prompts_per_step * config.rollout.n_votes_per_prompt
    tokens = tries * config.agent.max_turns * longest * (kind == "cpu")

    rows = min(config.rollout.max_batch_size, tries)
    cache_layer = rows * longest * shape.key_value * (stored + compute)
    prefill = min(rows, config.rl.prompts_per_step) * prompt
    activations, logits, heap = _backward(
        config, shape, kind, compute, config.rl.micro_batch_size, config.rl.entropy_coef > 0
    )
    own_sampler = backend_facts(config).is_learner
    engine, engine_rows = _engine(config, shape, kind, compute, total)
    begins_bare = lora is not None and "sft" not in config.phases  # then the base without adapters is the reference
    keeps_reference = config.rl.kl_coef > 0 and not (begins_bare and config.rl.reference_refresh_steps is None)
    parts = {
        "weights": (shape.parameters - shape.adapters) * stored + shape.adapters * FP32,
        "gradients": trainable * FP32,
        "optimizer": 2 * trainable * FP32,
        "reference": trainable * FP32 if keeps_reference else 0,
        "casts": shape.matrices * compute if compute < stored else 0,
        "activations": activations,
        "logits": logits,
        "heap": heap,
        "kv_cache": (shape.layers + 1) * cache_layer * own_sampler,
        "sampling": own_sampler
        * (
            LOGIT_COPIES * FP32 * rows * shape.vocabulary
            + prefill * layer_bytes_per_token(shape, compute, False, _eager_tokens(config, prompt))
        ),
        "episodes": tokens * EPISODE_TOKEN_BYTES,
        "batch": tokens * BATCH_TOKEN_BYTES,
        "runtime": PROCESS_BYTES if kind == "cpu" else CUDA_CONTEXT_BYTES,
        "engine": engine,
    }
    sleeps = config.vllm.sleep and kind == "cuda"
    beside = min(engine, ASLEEP_BYTES) if sleeps else engine
    fixed = sum(parts[name] for name in ("weights", "reference", "casts", "runtime"))
    kept = parts["episodes"] + parts["batch"]
    phases = {
        "sample": fixed + parts["optimizer"] + parts["kv_cache"] + parts["sampling"] + parts["episodes"] + engine,
        "update": fixed + parts["optimizer"] + parts["gradients"] + activations + logits + heap + kept + beside,
    }
    if "sft" in config.phases:
        muon = shape.matrices if config.sft.optimizer == "muon" and lora is None else 0
        optimizer = (2 * trainable - muon) * FP32
        parts["sft_activations"] = sum(_backward(config, shape, kind, compute, config.sft.micro_batch_size, False))
        phases["sft"] = fixed - parts["reference"] + optimizer + parts["gradients"] + parts["sft_activations"]
    return MemoryEstimate(kind, precision, shape.parameters, trainable, parts, phases, engine_rows)


def longest_turn(config: SkillTTRLConfig) -> tuple[int, int]:
    """(tokens of the longest prompt, of the longest answer): skills have budgets of their own beside both."""
    prompt, answer = config.data.max_prompt_tokens, config.rollout.max_new_tokens
    if config.skills is not None and config.skills.use:
        prompt += config.skills.prompt_tokens if config.skills.in_prompt else 0
        answer += config.skills.max_retrievals * config.skills.retrieve_tokens
    return prompt, answer


def _engine(config: SkillTTRLConfig, shape: _Shape, kind: str, compute: int, total: int | None) -> tuple[int, float]:
    """(bytes, longest sequences whose keys and values fit) of a vLLM engine in this process; (0, 0) without one."""
    if not backend_facts(config).engine:
        return 0, 0.0
    number = {"auto": compute, "float32": FP32}.get(config.vllm.dtype, 2)
    weights = (shape.parameters - shape.adapters) * number
    longest = config.vllm.max_model_len or sum(longest_turn(config))
    row = 2 * shape.key_value * shape.layers * longest * number
    if kind == "cpu":
        cache = config.vllm.cpu_kv_cache_gb * 1024**3
        return weights + cache + ENGINE_BYTES, cache / row
    if total is None:
        total = device_memory("cuda") if torch.cuda.is_available() else PLANNED_GPU_BYTES
    share = int(config.vllm.gpu_memory_utilization * total)
    return share, max(0, share - weights - ASLEEP_BYTES) / row


def _backward(
    config: SkillTTRLConfig, shape: _Shape, kind: str, compute: int, micro_batch_size: int, entropy: bool
) -> tuple[int, int, int]:
    """(activations, logits, heap) of one forward and backward pass over a micro-batch, in bytes."""
    adapters = config.model.lora is not None
    longest = sum(longest_turn(config))
    tokens = micro_batch_size * longest
    layer = layer_bytes_per_token(shape, compute, adapters, _eager_tokens(config, longest))
    kept = (shape.layers + 1) * layer
    if config.model.gradient_checkpointing:
        kept = shape.layers * shape.hidden * (compute if adapters else FP32) + 2 * layer
    rows = min(micro_batch_size * config.rollout.max_new_tokens, max(1, LOGIT_BUDGET // shape.vocabulary))
    around = 4 * FP32 * shape.hidden  # embedding, last norm, what the head is given
    activations, logits = tokens * (kept + around), (LOGIT_COPIES + entropy) * FP32 * rows * shape.vocabulary
    on_heap = kind == "cpu" and tokens * shape.intermediate * compute < HEAP_LIMIT_BYTES
    return activations, logits, int(HEAP_SHARE * (activations + logits)) if on_heap else 0


def layer_bytes_per_token(shape: _Shape, compute: int, adapters: bool, eager_tokens: int = 0) -> int:
    """What autograd keeps of one decoder layer for one token.

    Two RMSNorms keep their input and its normed form in fp32 and hand on one copy in the compute dtype: 2 D (8 + c).
    Attention keeps queries, keys, values, its output and the output laid out for the projection: c (3 Q + 2 KV); the
    gated MLP keeps gate, activated gate, up and product: c 4 F. Adapters keep an input of their own for each of q, k, v,
    gate and up instead of a shared one: c 3 D. Eager attention keeps its probabilities: heads x tokens (4 + c).

    Args:
        shape: Sizes of the decoder.
        compute: Bytes of a number in the forward pass (c).
        adapters: Whether LoRA adapters sit on the linear layers.
        eager_tokens: Length of a row where attention is `eager`; 0 for kernels that keep no probabilities.
    """
    norms = 2 * shape.hidden * (2 * FP32 + compute)
    attention = compute * (3 * shape.query + 2 * shape.key_value) + shape.heads * eager_tokens * (FP32 + compute)
    return norms + attention + compute * 4 * shape.intermediate + (compute * 3 * shape.hidden if adapters else 0)


def device_memory(device: str) -> int:
    """Memory in bytes that a process may take: all of a GPU's, or what is available of this machine's (or container's) now.

    Args:
        device: `cpu`, `cuda` or `cuda:1`.
    """
    if device.startswith("cuda"):
        return int(torch.cuda.get_device_properties(torch.device(device)).total_memory)
    import psutil

    available = int(psutil.virtual_memory().available)
    limit, used = (Path("/sys/fs/cgroup", name) for name in ("memory.max", "memory.current"))
    try:
        return min(available, int(limit.read_text()) - int(used.read_text()))
    except (OSError, ValueError):  # no such group, or "max": no limit
        return available


def gpus() -> list[str]:
    """Name and size of each GPU that torch can use."""
    found = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    return [f"{gpu.name}, {gpu.total_memory / 1e9:.0f} GB" for gpu in found]


def _precision(config: SkillTTRLConfig, kind: str) -> str:
    name = config.runtime.precision
    if kind == "cuda" and not torch.cuda.is_available():  # planning for a GPU that is elsewhere
        return "bf16" if name == "auto" else name
    return resolve_precision(name, torch.device(kind))


def _eager_tokens(config: SkillTTRLConfig, tokens: int) -> int:
    return tokens if config.model.attn_implementation == "eager" else 0


def _shape(model_config: Any, lora: LoraConfig | None) -> _Shape:
    import transformers

    builder: Any = transformers.AutoModelForCausalLM
    try:
        with torch.device("meta"):
            model = builder.from_config(model_config)
    except (ValueError, KeyError) as error:
        raise ModelError(
            f"Cannot estimate memory for a {getattr(model_config, 'model_type', 'model')!r} model: transformers builds no "
            f"causal language model from this config ({' '.join(str(error).split())[:200]})."
        ) from None
    text = model_config.get_text_config()
    heads = text.num_attention_heads
    width = getattr(text, "head_dim", None) or text.hidden_size // heads
    linear = _linear_layers(model)
    return _Shape(
        layers=text.num_hidden_layers,
        hidden=text.hidden_size,
        intermediate=text.intermediate_size,
        query=heads * width,
        key_value=(getattr(text, "num_key_value_heads", None) or heads) * width,
        heads=heads,
        vocabulary=text.vocab_size,
        parameters=sum(parameter.numel() for parameter in model.parameters()) + _adapters(linear, lora),
        matrices=sum(layer.weight.numel() for layer in linear.values()),
        adapters=_adapters(linear, lora),
    )


def _linear_layers(model: Any) -> dict[str, nn.Linear]:
    head = model.get_output_embeddings()
    return {
        name: module for name, module in model.named_modules() if isinstance(module, nn.Linear) and module is not head
    }


def _adapters(linear: Mapping[str, nn.Linear], lora: LoraConfig | None) -> int:
    """Numbers in the adapters: r (inputs + outputs) for each linear layer that gets one."""
    if lora is None:
        return 0
    wanted = lora.target_modules
    chosen = [
        layer
        for name, layer in linear.items()
        if wanted == "all-linear" or any(name == target or name.endswith(f".{target}") for target in wanted)
    ]
    return sum(lora.r * (layer.in_features + layer.out_features) for layer in chosen)
