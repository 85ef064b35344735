"""Shapes of models that shipped recipes name, as published in their `config.json`: a plan needs them where no hub is reached."""

from __future__ import annotations

from typing import Any

from transformers import Qwen2Config

PUBLISHED: dict[str, tuple[int, int, int, int, int, int, bool]] = {
    "Qwen/Qwen2.5-7B-Instruct": (152064, 3584, 18944, 28, 28, 4, False),
    "Qwen/Qwen2.5-1.5B-Instruct": (151936, 1536, 8960, 28, 12, 2, True),
    "Qwen/Qwen2.5-0.5B-Instruct": (151936, 896, 4864, 24, 14, 2, True),
}
"""Vocabulary, hidden and intermediate size, layers, heads, key-value heads, and whether the embeddings are tied."""


def published_config(path: str) -> Any | None:
    """The transformers config of a model by its name on the hub; None: it is not in the table."""
    if path not in PUBLISHED:
        return None
    vocabulary, hidden, intermediate, layers, heads, key_value, tied = PUBLISHED[path]
    return Qwen2Config(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=key_value,
        tie_word_embeddings=tied,
        max_position_embeddings=32768,
        rope_theta=1e6,  # type: ignore[call-arg]
    )
