"""Floating-point operations of forward and backward passes, counted from the shapes of a model and of its micro-batches.

As in PaLM (arXiv 2204.02311, appendix B), what gradient checkpointing or the head computes twice counts once. Here tokens count as
they are computed: what several sequences share once, padding too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from skill_ttrl.rl.forward.micro_batch import MicroBatch


@dataclass(frozen=True, slots=True)
class ModelWork:
    """Operations of a causal language model: two for each multiplication of a weight or an attention score."""

    weights: int
    """Numbers in the decoder's linear layers."""
    learnt: int
    """Of these, numbers that learn."""
    head: int
    """Numbers in the head's matrix."""
    head_learns: bool
    attention: int
    """Width of all query heads together x layers."""
    vocabulary: int

    def forward(self, micro_batch: MicroBatch) -> float:
        """Operations of a forward pass: the decoder's for each token, the head's where a trained token is predicted."""
        scores = 4 * self.attention * micro_batch.attention_pairs  # of a query with a key, and of its share of a value
        return 2.0 * (self.weights * micro_batch.computed_tokens + self.head * self._whole_heads(micro_batch)) + scores

    def update(self, micro_batch: MicroBatch) -> float:
        """Operations of a forward and a backward pass: gradients of all inputs, and of the weights that learn."""
        tokens, positions = micro_batch.computed_tokens, self._whole_heads(micro_batch)
        gradients = 2.0 * (self.learnt * tokens + self.head * positions * self.head_learns)
        return self.forward(micro_batch) * 2 + gradients + 4 * self.attention * micro_batch.attention_pairs

    def _whole_heads(self, micro_batch: MicroBatch) -> float:
        """Positions at which the head is applied; one with fewer of its rows counts as their share."""
        if not micro_batch.allowed:
            return len(micro_batch.positions_Q)
        shares = (1.0 if part.ids_V is None else len(part.ids_V) / self.vocabulary for part in micro_batch.allowed)
        return sum(len(part.queries_Q) * share for part, share in zip(micro_batch.allowed, shares, strict=True))

    @classmethod
    def of(cls, model: Any) -> ModelWork:
        """Count a transformers model, with the adapters that sit in it; weights may be sharded."""
        config = model.config.get_text_config()
        linear = [module for module in model.get_decoder().modules() if isinstance(module, nn.Linear)]
        head = model.get_output_embeddings()
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return cls(
            weights=sum(module.weight.numel() for module in linear),
            learnt=sum(module.weight.numel() for module in linear if module.weight.requires_grad),
            head=config.vocab_size * config.hidden_size,
            head_learns=any(parameter.requires_grad for parameter in head.parameters()),
            attention=width * config.num_attention_heads * config.num_hidden_layers,
            vocabulary=config.vocab_size,
        )
