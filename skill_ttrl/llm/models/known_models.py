"""Shapes of models that shipped recipes name, as published in their `config.json`: a plan needs them where no hub is reached."""

from __future__ import annotations

from typing import Any

from transformers import Qwen2Config

_QWEN2_5 = {"vocab_size": 152064, "max_position_embeddings": 32768, "rope_theta": 1e6, "tie_word_embeddings": False}
PUBLISHED: dict[str, dict[str, Any]] = {
    "Qwen/Qwen2.5-7B-Instruct": {
        **_QWEN2_5,
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
    },
    "Qwen/Qwen2.5-1.5B-Instruct": {
        **_QWEN2_5,
        "vocab_size": 151936,
        "tie_word_embeddings": True,
        "hidden_size": 1536,
        "intermediate_size": 8960,
        "num_hidden_layers": 28,
        "num_attention_heads": 12,
        "num_key_value_heads": 2,
    },
    "Qwen/Qwen2.5-0.5B-Instruct": {
        **_QWEN2_5,
        "vocab_size": 151936,
        "tie_word_embeddings": True,
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
    },
}


def published_config(path: str) -> Any | None:
    """The transformers config of a model by its name on the hub; None: it is not in the table."""
    known = PUBLISHED.get(path)
    return None if known is None else Qwen2Config(**known)
