"""Bytes that the learner and its sampler take, from the shape of a decoder alone: no weights are loaded.

Every formula is an upper bound of the steady state: prompts and completions at their longest, all gradients present. How many
copies of the logits live at once and what autograd keeps of a layer are counted from this package's learner and sampler and from
transformers' Llama-like layers (RMSNorm, rotary attention, gated MLP); other layers are close to these.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from skill_ttrl.config import LoraConfig
from skill_ttrl.errors import ModelError
from skill_ttrl.rl.forward.head import CPU_BLOCK, GPU_BLOCK, MIN_BLOCK_WIDTH
from skill_ttrl.rl.policy import LOGIT_BUDGET

FP32 = 4
HEAP_LIMIT_BYTES = 32 * 1024**2
HEAP_SHARE = 0.75
"""glibc hands freed blocks of more than 32 MiB back at once and keeps smaller ones: of activations and logits made of
such, about this share more stays resident (measured with models of 7 to 46 million parameters: 0.4 to 1.2)."""
LOGIT_COPIES = 4
"""Float32 (rows, vocabulary) tensors alive at once: of a block in the loss, its logits, log-softmax, softmax and gradient; in
sampling, the logits, the tempered ones, their log-softmax and the probabilities."""


@dataclass(frozen=True, slots=True)
class DecoderShape:
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

    @property
    def trainable(self) -> int:
        """Numbers that learn: the adapters where there are any, else all."""
        return self.adapters or self.parameters


@dataclass(frozen=True, slots=True)
class ComputeSettings:
    """Settings of the learner that its memory depends on."""

    compute: int
    """Bytes of a number in the forward pass."""
    adapters: bool
    """LoRA adapters sit on the linear layers; the base is frozen."""
    gradient_checkpointing: bool
    eager_attention: bool
    on_cpu: bool
    packed: bool = False
    """A prompt that several sequences share is computed once."""

    @property
    def stored(self) -> int:
        """Bytes of a number of the base's weights: those that learn are kept in float32."""
        return self.compute if self.adapters else FP32


def read_shape(model_config: Any, lora: LoraConfig | None) -> DecoderShape:
    """Read the sizes of a model from its transformers config; nothing is allocated.

    Raises:
        ModelError: transformers builds no causal language model from this config.
    """
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
    head, modules = model.get_output_embeddings(), model.named_modules()
    linear = {name: each for name, each in modules if isinstance(each, nn.Linear) and each is not head}
    return DecoderShape(
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


def weight_bytes(shape: DecoderShape, how: ComputeSettings) -> dict[str, int]:
    """`weights gradients optimizer casts`.

    Weights take 4 a number, frozen ones under adapters what the forward pass takes. Gradients and AdamW's two moments take 4
    for each trainable number. Where float32 weights meet a bf16 or fp16 forward pass, autocast keeps a copy of each linear layer.
    """
    return {
        "weights": (shape.parameters - shape.adapters) * how.stored + shape.adapters * FP32,
        "gradients": shape.trainable * FP32,
        "optimizer": 2 * shape.trainable * FP32,
        "casts": shape.matrices * how.compute if how.compute < how.stored else 0,
    }


def backward_bytes(
    shape: DecoderShape,
    how: ComputeSettings,
    *,
    tokens: int,
    answer_tokens: int,
    longest: int,
    repeated_tokens: int = 0,
    entropy: bool = False,
) -> dict[str, int]:
    """`activations logits heap` of one forward and backward pass over a micro-batch.

    Activations are those of all layers, or their inputs and one layer with gradient checkpointing, and once more one layer for
    the gradients that flow back. The heap is what a CPU's C library keeps of freed memory, see `HEAP_SHARE`.

    Args:
        shape: The model.
        how: How it computes.
        tokens: All tokens of the micro-batch, prompts and answers, padding counted.
        answer_tokens: Those of its answers. Their logits are held in the compute dtype up to `LOGIT_BUDGET` numbers, none under
            adapters; a block of them is alive in float32.
        longest: Length of the longest sequence.
        repeated_tokens: Of prompts that are computed once for several sequences, all but the first copy: each of these
            sequences has the prompt's keys and values for itself.
        entropy: The entropy is computed too.
    """
    layer = layer_bytes_per_token(shape, how, longest)
    saved, layers = (shape.layers + 1) * layer, shape.layers + 1
    if how.gradient_checkpointing:
        saved, layers = shape.layers * shape.hidden * how.stored + 2 * layer, 2
    around = 4 * FP32 * shape.hidden  # embedding, last norm, what the head is given
    copied = repeated_tokens * 2 * shape.key_value * how.compute * layers
    activations, numbers = tokens * (saved + around) + copied, answer_tokens * shape.vocabulary
    block = min(numbers, max(CPU_BLOCK if how.on_cpu else GPU_BLOCK, answer_tokens * MIN_BLOCK_WIDTH))
    held = 0 if how.adapters and not entropy else min(numbers, LOGIT_BUDGET)
    logits = (LOGIT_COPIES + entropy) * FP32 * block + how.compute * held
    on_heap = how.on_cpu and tokens * shape.intermediate * how.compute < HEAP_LIMIT_BYTES
    heap = int(HEAP_SHARE * (activations + logits)) if on_heap else 0
    return {"activations": activations, "logits": logits, "heap": heap}


def sampling_bytes(
    shape: DecoderShape, how: ComputeSettings, *, rows: int, prompts: int, prompt_tokens: int, tokens: int
) -> dict[str, int]:
    """`kv_cache sampling` where the learner's own model samples.

    The cache is rows x tokens x layers x width of keys and values, and one layer more while it is extended; sampling takes the
    logits of each row and one layer of the prompts' first pass.

    So many `rows` are sampled at once, each of `tokens` of prompt and answer, with so many different `prompts` among them.
    """
    prefill = prompts * prompt_tokens * layer_bytes_per_token(shape, replace(how, adapters=False), prompt_tokens)
    return {
        "kv_cache": (shape.layers + 1) * rows * tokens * shape.key_value * (how.stored + how.compute),
        "sampling": LOGIT_COPIES * FP32 * rows * shape.vocabulary + prefill,
    }


def layer_bytes_per_token(shape: DecoderShape, how: ComputeSettings, tokens: int) -> int:
    """Bytes that autograd keeps of one decoder layer for one token.

    Two RMSNorms keep their input and its normed form in fp32 and hand on one copy in the compute dtype: 2 D (8 + c).
    Attention keeps queries, keys, values, its output and the output laid out for the projection: c (3 Q + 2 KV); the
    gated MLP keeps gate, activated gate, up and product: c 4 F. Adapters keep an input of their own for each of q, k, v,
    gate and up instead of a shared one: c 3 D. Eager attention keeps its probabilities: heads x tokens (4 + c).

    `tokens` is the length of a row; kernels other than eager attention keep no probabilities.
    """
    c = how.compute
    norms = 2 * shape.hidden * (2 * FP32 + c)
    attention = c * (3 * shape.query + 2 * shape.key_value)
    if how.eager_attention:
        attention += shape.heads * tokens * (FP32 + c)
    return norms + attention + c * 4 * shape.intermediate + how.adapters * c * 3 * shape.hidden
