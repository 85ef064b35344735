"""Sections of a config: the policy's weights."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from skill_ttrl.config.section import Section

BUILTIN = "builtin"
"""Value of `model.path` for the built-in small policy."""


class LoraConfig(Section):
    """Low-rank adapters through peft."""

    r: int = Field(default=16, ge=1)
    alpha: float = Field(default=32.0, gt=0)
    target_modules: list[str] | Literal["all-linear"] = "all-linear"


class BuiltinConfig(Section):
    """Shape of the built-in policy: a small Qwen2 with random weights and a tokenizer made on the spot."""

    hidden_size: int = Field(default=96, ge=8, le=4096)
    layers: int = Field(default=2, ge=1, le=64)
    heads: int = Field(default=4, ge=1)
    intermediate_size: int | None = Field(default=None, ge=8, le=16384)
    """Width of the gated layer (SwiGLU); None: three times the hidden size."""
    max_positions: int = Field(default=512, ge=16)
    vocabulary: Literal["bytes", "entities"] = "bytes"
    """Kind of token. `bytes`: any text, by byte-level BPE. `entities`: a thing with its number ("cabinet 27") or a word, of those that the
    demonstrations, the skills of `skills.bank`, the document and `words` hold; other words are `<unk>` (docs/models.md)."""
    words: list[str] = Field(default_factory=list)
    """Further texts whose words are in the vocabulary of `entities`, such as skills that are written later."""
    merges: int = Field(default=96, ge=0, le=20_000)
    """Words that the tokenizer learns from the demonstrations, at most."""
    numbers: int = Field(default=0, ge=0, le=999)
    """So many numbers in brackets, `[1]` and so on, are one token each: the answers of `agent.actions: numbered`."""
    shared_embeddings: bool = False
    """The embedding of a token "cabinet 27" is learnt as the row of its kind plus the row of its number. What is saved is a plain matrix."""

    attend_to_alike: float = Field(default=0.0, ge=0, le=10)
    """Above 0, keys of the first layer begin as its queries, both so many times as large as drawn: a word attends to words like it from the start,
    as copying and comparing need, which otherwise comes late. 2 serves the entity vocabulary. 0: both are drawn."""

    @model_validator(mode="after")
    def _shape_is_possible(self) -> BuiltinConfig:
        if self.hidden_size % (2 * self.heads):
            raise ValueError(
                f"hidden_size ({self.hidden_size}) must be a multiple of twice the heads ({self.heads}): each head needs an "
                "even width"
            )
        if self.shared_embeddings and self.vocabulary != "entities":
            raise ValueError(
                "shared_embeddings needs vocabulary=entities: tokens of bytes have no kind and no number to share"
            )
        return self


class ModelConfig(Section):
    """The policy."""

    path: str = "Qwen/Qwen2.5-Math-7B"
    """Hugging Face id, a folder, or `builtin` for the built-in small policy."""
    revision: str | None = None
    """Commit of a hub model; recorded when it is resolved."""
    trust_remote_code: bool = False
    builtin: BuiltinConfig = Field(default_factory=BuiltinConfig)
    lora: LoraConfig | None = None
    """Set to train adapters instead of all weights."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: about a third slower, far less memory."""
    attn_implementation: str | None = None
    """`sdpa`, `eager`, `flash_attention_2`; None lets transformers choose."""
    packing: Literal["auto", "on", "off"] = "auto"
    """How the learner computes sequences. `on`: without padding, and what several begin with (a prompt, the first words of its
    answers) once for all; needs a model with plain causal attention on `sdpa`. `off`: in padded rows. `auto`: `on` where
    the model passes a test of it at the start, else `off` with a notice."""
