"""Estimate of the memory that a run takes at its peak, from the model's config and the settings alone.

P parameters, T of them trainable, in a decoder of L layers, width h, feed-forward width f, kv width of keys, vocabulary V; b bytes of a
number in the forward pass (4, in bf16 and fp16 2):

    weights      4 T + b (P - T), and b T for the copy of a lower precision
    optimizer    12 T: gradients and Adam's two moments; with a KL term 4 T for the reference of all weights
    activations  b L (10 h + 4 f) for each token of a micro-batch (with gradient checkpointing b (L h + 10 h + 4 f)), and 8 bytes for
                 each logit that is held
    cache        2 b L kv for each token of the rows that are sampled together

Sampling and learning take turns, so the larger of the last two counts. A shared prompt counts once where the learner packs. A critic, a
reward model and an embedder are not counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from skill_ttrl.config import SkillTTRLConfig
from skill_ttrl.llm.backends import backend_facts
from skill_ttrl.llm.hf.backend import CPU_BYTES
from skill_ttrl.rl.device import resolve_device, resolve_precision
from skill_ttrl.rl.policy import LOGIT_BUDGET

PROCESS = 700_000_000
"""Bytes of Python, torch and transformers before anything is loaded."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes at the peak of a run that holds the whole model in one process."""

    weights: int
    optimizer: int
    activations: int
    cache: int
    """Keys and values of the sampler; 0: another program's, such as vLLM's."""
    peak: int

    def __str__(self) -> str:
        """The peak and its parts, in words."""
        parts = (self.peak, PROCESS, self.weights, self.optimizer, self.activations, self.cache)
        return (
            "about {:.1f} GB at the peak: process {:.1f}, weights {:.1f}, gradients and optimizer {:.1f}, and the larger of "
            "activations {:.1f} and the sampler's cache {:.1f}".format(*(part / 1e9 for part in parts))
        )


def estimate_memory(
    config: SkillTTRLConfig, described: Any, parameters: int, trainable: int, *, prompt_tokens: int, measured: int
) -> Memory:
    """Estimate the peak of a run; see the module.

    Args:
        config: Settings of the run.
        described: The model's transformers config.
        parameters: All numbers of the model, adapters included.
        trainable: Those that learn.
        prompt_tokens: Longest prompt.
        measured: Samples of an evaluation.

    Raises:
        ModelError: The device or the precision is not to be had here.
    """
    device = resolve_device(config.runtime.device)
    size = 4 if resolve_precision(config.runtime.precision, device) == "fp32" else 2
    text, model, rollout, rl = described.get_text_config(), config.model, config.rollout, config.rl
    layers, width, heads = text.num_hidden_layers, text.hidden_size, text.num_attention_heads
    kv = (getattr(text, "num_key_value_heads", None) or heads) * (getattr(text, "head_dim", None) or width // heads)
    answer, micro = rollout.max_new_tokens, rl.micro_batch_size if config.votes else config.sft.micro_batch_size
    prompts = -(-micro // rollout.n_samples_per_prompt) if config.votes and model.packing != "off" else micro
    block = 10 * width + 4 * (getattr(text, "intermediate_size", None) or 4 * width)
    token = layers * width + block if model.gradient_checkpointing else layers * block
    logits = min(LOGIT_BUDGET, micro * answer * text.vocab_size)
    rows = max(measured, rl.prompts_per_step * rollout.n_votes_per_prompt) if backend_facts(config).is_learner else 0
    cache = 2 * size * layers * kv * (prompt_tokens + answer) * min(rows, rollout.max_batch_size)
    cache = min(cache, CPU_BYTES) if device.type == "cpu" else cache
    weights = 4 * trainable + size * (parameters - trainable) + (size * trainable if size < 4 else 0)
    refers = config.votes and model.lora is None and (rl.kl_coef > 0 or rl.kl_in_reward is not None)
    optimizer = (16 if refers else 12) * trainable
    activations = size * token * (prompts * prompt_tokens + micro * answer) + 8 * logits
    return Memory(weights, optimizer, activations, cache, PROCESS + weights + optimizer + max(activations, cache))
